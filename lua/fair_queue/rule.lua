-- Sets, removes or lists the rules of accounts.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] mark
--   ARGV[2] queue
--   ARGV[3] ttl in ms
--   ARGV[4] 1 if the caller has just seen that the namespace is there
--   ARGV[5] pattern, '' to list
--   ARGV[6] the rule's text, '' to remove it
-- Returns the rules as { pattern, text, ... } to list; else { 1 if there was such a rule, how many rules there are };
-- { -1, ... } if there are too many: then nothing is changed; -1 if the queue has gone since the caller was here.
--@include rules
local MOST_RULES, MOST_PATTERNS = 10000, 64
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'namespace')
local pattern, text = ARGV[5], ARGV[6]
local problem = refuse_facts(KEYS[META], found, pattern == '')
local marked, alive
if not problem and pattern ~= '' then
  problem, marked, alive = refuse_place(found[2])
end
if problem then
  return problem
end
if pattern == '' then
  return redis.call('HGETALL', KEYS[RULES])
end
if is_gone(found[1], ARGV[4]) then
  return -1
end
local was = redis.call('HEXISTS', KEYS[RULES], pattern)
local count = redis.call('HLEN', KEYS[RULES])
local is_glob = string.find(pattern, '[*?]')
if text == '' then
  if was == 0 then
    return { 0, count }
  end
  redis.call('HDEL', KEYS[RULES], pattern)
else
  local patterns = patterns_in(redis.call('HGET', KEYS[META], 'patterns') or '')
  if was == 0 and (count >= MOST_RULES or is_glob and #patterns >= MOST_PATTERNS) then
    return { -1, count }
  end
  redis.call('HSET', KEYS[RULES], pattern, text)
end
note_rules(KEYS, now())
if not found[1] then
  redis.call('HSET', KEYS[META], 'mark', FAIR_VERSION)
end
keep_alive(marked, alive)
return { was, redis.call('HLEN', KEYS[RULES]) }
