"""What a request passes before its route: HTTP, ids, browsers, keys, body, deadline, admission."""
