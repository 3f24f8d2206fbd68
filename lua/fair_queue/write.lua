-- Writes messages, each at the end of its account, and wakes sleeping readers.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] mark
--   ARGV[2] queue
--   ARGV[3] ttl in ms
--   ARGV[4] 1 if the caller has just seen that the namespace is there
--   ARGV[5] 1 to notify
--   ARGV[6] 1 to check the keys' types
--   ARGV[7..] for each message: account, its text from the priority on, priority, delay in ms, deadline in ms or `+`
--     and its time to live in ms or '', tracking id or '', dedupe key or '', the key's window in ms, after a `+` if the
--     key holds for all of it, also when the message has ended
-- Returns the ids of the messages; of one that has the dedupe key of another message, that message's.
-- Returns -1 if the queue has gone since the caller was here, and nothing is written; see is_gone().
-- Returns { 0, account, how many wait, how many may } if an account is full: then nothing is written.
--@include message
local facts = redis.pcall('HMGET', KEYS[META], 'mark', 'namespace', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], facts)
local marked, alive
if not problem then
  problem, marked, alive = refuse_place(facts[2])
end
if problem or ARGV[6] == '1' then
  --@include queue
  problem = problem or refuse_types(KEYS)
end
if problem then
  return problem
end
if is_gone(facts[1], ARGV[4]) then
  return -1
end
local is_new = not (facts[1] and facts[3])
local at = now()
facts = facts_of(KEYS, facts, 2, at)
-- First all is looked at, and then all is written.
local accounts, ids, taken = {}, {}, {}
for i = 7, #ARGV, 8 do
  local account, deduped = ARGV[i], ARGV[i + 6]
  local id, ends
  if deduped ~= '' then
    local lasts
    id, ends, lasts = deduped_by(redis.call('HGET', KEYS[DEDUPE], deduped) or '')
    if not id or ends <= at or not lasts and redis.call('HEXISTS', KEYS[MESSAGES], id) == 0 then
      id = taken[deduped]
    end
  end
  if id then
    ids[i] = id
  else
    taken[deduped ~= '' and deduped or 0] = i
    local known = accounts[account]
    if not known then
      local a = account_of(KEYS, account)
      if unbelieved then
        return unbelieved
      end
      -- A rule that has changed may change the tag.
      local tag_before = a and a.tag
      known = { a, a and settings_of(KEYS, facts, account, a) or nil, 0, tag_before }
      if not a then
        known[2] = settings_of(KEYS, facts, account, { version = -1, rule = '' })
      end
      accounts[account] = known
    end
    known[3] = known[3] + 1
    local waiting = known[1] and known[1].waiting + known[1].delayed or 0
    if known[2].most and waiting + known[3] > known[2].most then
      return { 0, account, waiting, known[2].most }
    end
  end
end
if unbelieved then
  return unbelieved
end
local wakes, longest = false, 0
for i = 7, #ARGV, 8 do
  if not ids[i] then
    local account, priority, delay = ARGV[i], ARGV[i + 2], tonumber(ARGV[i + 3])
    local deadline, tracked, deduped = ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]
    local a = accounts[account][1]
    if not a then
      --@include message
      a = new_account(KEYS, facts, at)
      accounts[account][1], accounts[account][4] = a, a.tag
    end
    if string.sub(deadline, 1, 1) == '+' then
      deadline = whole(at + tonumber(deadline))
    end
    local id
    if delay > 0 then
      --@include message
      id = new_epoch(KEYS, at) .. '-2-0'
    elseif priority == '1' then
      id, a.tail1 = a.epoch .. '-1-' .. whole(a.tail1), a.tail1 + 1
    else
      id, a.tail = a.epoch .. '-0-' .. whole(a.tail), a.tail + 1
    end
    -- A full server refuses the first write of a script or none of them.
    redis.call('HSET', KEYS[MESSAGES], id, whole(at) .. ' ' .. (deadline == '' and '0' or deadline) .. ' ' .. ARGV[i + 1])
    if delay > 0 then
      redis.call('ZADD', KEYS[PARKED], at + delay, id)
      look_at(KEYS, facts, at + delay)
      a.delayed = a.delayed + 1
      longest = math.max(longest, delay)
      wakes = true
    else
      a.waiting = a.waiting + 1
    end
    if tracked ~= '' then
      redis.call('HSET', KEYS[TRACKING], tracked, id)
    end
    if deduped ~= '' then
      local lasts = string.sub(ARGV[i + 7], 1, 1) == '+'
      local window = tonumber(ARGV[i + 7])
      redis.call('HSET', KEYS[DEDUPE], deduped, id .. ' ' .. whole(at + window) .. (lasts and ' +' or ''))
      if lasts then
        -- A queue that went before the window's end would forget the key.
        longest = math.max(longest, window - ARGV[3])
      end
    end
    if deadline ~= '' then
      redis.call('ZADD', KEYS[DEADLINES], deadline, id)
    end
    ids[i] = id
  end
end
local made = {}
for i = 7, #ARGV, 8 do
  made[#made + 1] = ids[ids[i]] or ids[i]
end
for account, known in pairs(accounts) do
  local a = known[1]
  local s = known[2]
  if a.version ~= facts.rules then
    s = settings_of(KEYS, facts, account, a)
  end
  wakes = settle_place(KEYS, facts, account, a, s, at, known[4]) or wakes
  save_account(KEYS, account, a)
end
if is_new then
  redis.call('HSET', KEYS[META], 'mark', FAIR_VERSION, 'now', whole(facts.now))
end
if wakes and ARGV[5] == '1' then
  notify(KEYS[NOTIFICATIONS], 'w')
end
keep_alive(marked, alive, longest, at)
return made
