-- Lists the answers on one page of the key space that match all criteria.
-- It scans the keys, because an index may be new and incomplete.
-- ARGV: cursor, pattern of the answers' keys, keys per page, then (1 or 0, value) for tenant, namespace, tag.
local page = redis.call("SCAN", ARGV[1], "MATCH", ARGV[2], "COUNT", ARGV[3], "TYPE", "hash")
local named = {}
for _, key in ipairs(page[2]) do
  local kept = redis.call("HMGET", key, "tenant", "namespace", "tags")
  local tenant = ARGV[4] == "0" or kept[1] == ARGV[5]
  local namespace = ARGV[6] == "0" or kept[2] == ARGV[7]
  local tag = ARGV[8] == "0" or (kept[3] and string.find("," .. kept[3] .. ",", "," .. ARGV[9] .. ",", 1, true))
  if tenant and namespace and tag then
    table.insert(named, key)
  end
end
return { page[1], named }
