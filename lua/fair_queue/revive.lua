-- Writes messages that were set aside into their accounts again, with new ids, and forgets their attempts.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] mark
--   ARGV[2] queue
--   ARGV[3] ttl in ms
--   ARGV[4] 1 to notify
--   ARGV[5..] ids
-- Returns how many were dead.
--@include message
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'namespace', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
local marked, alive
if not problem then
  problem, marked, alive = refuse_place(found[2])
end
if problem then
  return problem
end
local at = now()
local facts = facts_of(KEYS, found, 2, at)
if unbelieved then
  return unbelieved
end
local revived, wakes = 0, false
for i = 5, #ARGV do
  local text = string.match(redis.call('HGET', KEYS[DEAD], ARGV[i]) or '', '^%d+ %d+ %d+ (.*)$')
  local m = text and parts_of_message(text)
  local a = m and account_of_some(KEYS, facts, m.account, at)
  if unbelieved then
    break
  end
  if m then
    local tag_before = a.tag
    local id
    if m.priority == 1 then
      id, a.tail1 = a.epoch .. '-1-' .. whole(a.tail1), a.tail1 + 1
    else
      id, a.tail = a.epoch .. '-0-' .. whole(a.tail), a.tail + 1
    end
    -- A full server refuses the first write of a script or none of them.
    redis.call('HSET', KEYS[MESSAGES], id, text)
    redis.call('HDEL', KEYS[DEAD], ARGV[i])
    a.waiting = a.waiting + 1
    if m.tracked ~= '' then
      redis.call('HSET', KEYS[TRACKING], m.tracked, id)
    end
    if m.deadline > 0 then
      redis.call('ZADD', KEYS[DEADLINES], m.deadline, id)
    end
    wakes = settle_place(KEYS, facts, m.account, a, settings_of(KEYS, facts, m.account, a), at, tag_before) or wakes
    save_account(KEYS, m.account, a)
    revived = revived + 1
  end
end
if revived > 0 then
  if wakes and ARGV[4] == '1' then
    notify(KEYS[NOTIFICATIONS], 'v')
  end
  keep_alive(marked, alive, 0, at)
end
return unbelieved and revived == 0 and unbelieved or revived
