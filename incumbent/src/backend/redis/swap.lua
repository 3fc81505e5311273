-- Compares and swaps records. KEYS: the authority's, then one for each swap. ARGV: an identity for the authority if it has none,
-- who asks, then for each swap: channel, expected version ('': absent), expected token, token rule ('keep', 'raise' or the
-- token itself), body. Answers {lineage, authority, {{version, token} or nil, ...}}: nil where something else stands.
-- One more than the last, or the time of day in microseconds: what was deleted and made again does not begin anew.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function after(last)
  local next = math.max(tonumber(last) + 1, now)
  if next > 9007199254740991 then error('a number has become too great') end
  return string.format('%.0f', next)
end

local authority = look(KEYS[1])
if authority and authority.err then return authority end
if not authority or authority[3] == '' then
  if authority then redis.call('DEL', KEYS[1]) end
  authority = {'1', '0', ARGV[1]}
  redis.call('HSET', KEYS[1], 'version', '1', 'token', '0', 'body', ARGV[1])
end

local swapped = {}
for i = 2, #KEYS do
  local key, at = KEYS[i], 3 + (i - 2) * 5
  local channel, version, token, rule, body = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local there = look(key)
  if there and there.err then return there end
  if (there and there[1] or '') == version and (version == '' or there[2] == token) then
    local old_version, old_token, old_body = '0', '0', false
    if there then old_version, old_token, old_body = there[1], there[2], there[3] end
    if rule == 'keep' then token = old_token
    elseif rule == 'raise' then token = after(old_token)
    else token = rule end
    version = after(old_version)
    -- A renewal is no news to the one who renews.
    local news = ''
    if rule == 'keep' and old_body == body then news = ARGV[2] end
    -- First what may be refused: a refusal undoes nothing.
    redis.call('PUBLISH', channel, news)
    if old_version == '0' and there then redis.call('DEL', key) end
    redis.call('HSET', key, 'version', version, 'token', token, 'body', body)
    swapped[i - 1] = {version, token}
  else
    swapped[i - 1] = false
  end
end
return {string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)'), authority[3], swapped}
