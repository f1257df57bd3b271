"""What a request passes before its route: HTTP, browsers, keys, body, deadline, admission. One concept a file."""
