-- The record of a key as {version, token, body}, false if there is none; what is no record of ours has version and token 0.
local function whole(text, digits)
  return text and #text <= digits and string.find(text, '^%d+$')
end
local function look(key)
  local found = redis.pcall('HMGET', key, 'version', 'token', 'body')
  if found.err then
    if string.find(found.err, 'WRONGTYPE', 1, true) then return {'0', '0', ''} end
    return found
  end
  if whole(found[1], 16) and whole(found[2], 20) then return {found[1], found[2], found[3] or ''} end
  if redis.call('EXISTS', key) == 0 then return false end
  return {'0', '0', found[3] or ''}
end
