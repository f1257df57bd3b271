-- Which replica has a request's query in its prefix cache? The same query gives the same key, which haproxy.cfg hashes
-- to a replica.
--
-- The header `x-mis-prefix` decides alone where a client sends it. Else the body is read, as much of it as HAProxy
-- buffers (tune.bufsize): the first top-level field that names what items share, and the salt of the cache. A text gives
-- the same key whether its characters are escaped (\uXXXX) or not, a list of ids with whatever white space, and both
-- wherever in the body they stand. Queries that share their first KEY_BYTES share a replica, as that part is what it has cached.
--
-- Sets txn.mis_key, unless there is none, and txn.mis_key_from:
--   header, query   where the key comes from
--   unseen          what HAProxy buffers ends before the query does, or before its first KEY_BYTES; or it is compressed
--   absent          a body without such a field, or not an object of JSON

local KEY_BYTES = 16384
local LONGEST_ESCAPE = 6 -- \u0041 is one byte
local BEHIND = 12 -- an escape of two surrogates
local SHARED = { query = true, input = true, state = true, states = true, prompt = true, messages = true }
local SALTS = { cache_salt = true, x_cache_salt = true }
local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- The position of the quotation mark that ends the string which begins at `from`; nil where the text ends before.
local function end_of_string(text, from)
    local mark = from
    while true do
        mark = text:find('"', mark + 1, true)
        if mark == nil then
            return nil
        end
        local before = mark - 1
        while text:byte(before) == 92 do -- a backslash
            before = before - 1
        end
        if (mark - before) % 2 == 1 then
            return mark
        end
    end
end

-- The last position of the value that begins at `from`; nil where the text ends before. Never recurses.
local function end_of_value(text, from)
    local first = text:sub(from, from)
    if first == '"' then
        return end_of_string(text, from)
    end
    if first ~= "[" and first ~= "{" then -- a number, true, false, null
        local behind = text:find("[,%]}%s]", from)
        return behind and behind - 1
    end
    local depth, at = 0, from
    while at do
        local mark = text:sub(at, at)
        if mark == '"' then
            at = end_of_string(text, at)
            if at == nil then
                return nil
            end
        elseif mark == "[" or mark == "{" then
            depth = depth + 1
        else
            depth = depth - 1
            if depth == 0 then
                return at
            end
        end
        at = text:find('["%[%]{}]', at + 1)
    end
    return nil
end

local function character(hexadecimal)
    return utf8.char(tonumber(hexadecimal, 16))
end

local function pair_of_surrogates(high, low)
    return utf8.char(0x10000 + ((tonumber(high, 16) - 0xD800) << 10) + tonumber(low, 16) - 0xDC00)
end

-- JSON's escapes as the characters that they stand for. `text` has whole escapes only.
local function unescaped(text)
    if not text:find("\\", 1, true) then
        return text
    end
    text = text:gsub("\\\\", "\\u005c") -- from here on every backslash begins an escape
    text = text:gsub("\\([^u])", function(escape)
        return ESCAPES[escape] or escape
    end)
    text = text:gsub("\\u([dD][89aAbB]%x%x)\\u([dD][c-fC-F]%x%x)", pair_of_surrogates)
    return (text:gsub("\\u(%x%x%x%x)", character))
end

-- What `from` to `to` of a text stands for, at most its first KEY_BYTES; `to` is nil where the text ends within the value.
-- nil: neither the end of the value nor that much of it is there. What is cut off may leave half an escape, but behind.
local function key_of_value(text, from, to)
    local is_text = text:byte(from) == 34
    local last = math.min(to or #text, from + LONGEST_ESCAPE * (KEY_BYTES + BEHIND))
    local value = text:sub(is_text and from + 1 or from, (is_text and last == to) and last - 1 or last)
    value = unescaped(value)
    if not is_text then
        value = value:gsub("[ \t\r\n]+", "")
    end
    if to == nil and #value < KEY_BYTES + BEHIND then
        return nil
    end
    return (is_text and "text:" or "value:") .. value:sub(1, KEY_BYTES)
end

-- The position of the first character that is not white space; nil where the text ends before.
local function behind_space(text, from)
    return text:find("[^%s]", from)
end

-- The key of a body, and where it comes from.
local function key_of_body(text)
    local at = text:match("^%s*{()")
    if at == nil then
        return nil, "absent"
    end
    local key, salt = nil, ""
    local from -- nil once the text has ended
    while true do
        from = text:find("[^%s,]", at)
        if from == nil or text:byte(from) ~= 34 then -- the closing brace, or nonsense
            break
        end
        local last = end_of_string(text, from)
        local name = last and text:sub(from + 1, last - 1)
        from = last and behind_space(text, last + 1)
        if from == nil or text:byte(from) ~= 58 then -- a colon
            break
        end
        from = behind_space(text, from + 1)
        if from == nil then
            break
        end
        last = end_of_value(text, from)
        if SHARED[name] and key == nil then
            key = key_of_value(text, from, last)
        elseif SALTS[name] and last ~= nil then
            salt = key_of_value(text, from, last)
        end
        if last == nil then
            from = nil
            break
        end
        at = last + 1
    end
    if key == nil then
        return nil, from == nil and "unseen" or "absent"
    end
    return salt .. "\n" .. key, "query"
end

local function set_key(txn)
    local key, from = txn.f:req_hdr("x-mis-prefix"), "header"
    if key == nil or key == "" then
        local encoding = txn.f:req_hdr("content-encoding") or ""
        if encoding == "" or encoding:lower() == "identity" then
            key, from = key_of_body(txn.f:req_body() or "")
        else
            key, from = nil, "unseen"
        end
    end
    txn:set_var("txn.mis_key_from", from)
    if key ~= nil then
        txn:set_var("txn.mis_key", string.format("%016x", txn.c:xxh64(key)))
    end
end

core.register_action("mis_key", { "http-req" }, set_key)
