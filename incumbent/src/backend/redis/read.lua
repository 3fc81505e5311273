-- Reads the records KEYS whole. Answers {lineage, {record or nil, ...}}, a record as {version, token, body}.
local records = {}
for i, key in ipairs(KEYS) do
  local record = look(key)
  if record and record.err then return record end
  records[i] = record
end
return {string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)'), records}
