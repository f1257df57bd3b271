"""What every request meets before its route: HTTP, key, browsers, time, room, body."""
