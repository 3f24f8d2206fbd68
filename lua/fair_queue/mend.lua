-- Puts right a part of a queue that has lost keys, or whose rules have changed: each account stands where it belongs, and
-- each message can be served.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] the part: accounts, messages, held, back, tracking, dedupe, reads
--   ARGV[2] where to go on, '' for where the last call without a place has ended
--   ARGV[3] how many to look at
--   ARGV[4] 1 to notify
--   ARGV[5] 1 to count alone
-- Returns { where to go on next, how many were put right }.
--@include message
--@include rules
--@include receipts
--@include bounded
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found, ARGV[5] == '1')
problem = problem or refuse_types(KEYS)
if problem then
  return problem
end
local part, is_dry = ARGV[1], ARGV[5] == '1'
local at = now()
local facts = facts_of(KEYS, found, 1, at)
if unbelieved then
  return unbelieved
end
if not is_dry then
  begin_on_full(KEYS)
end
local PARTS = { accounts = ACCOUNTS, messages = MESSAGES, held = HELD, back = BACK, tracking = TRACKING, dedupe = DEDUPE, reads = META }
local from, field = ARGV[2], 'walk:' .. part
if from == '' then
  from = whole(stored(KEYS[META], field, redis.call('HGET', KEYS[META], field), 0, MOST_STORED, 0))
end
if unbelieved then
  return unbelieved
end
local cursor, page = some_of(KEYS[PARTS[part]], from, tonumber(ARGV[3]))
if ARGV[2] == '' and not is_dry and cursor ~= from then
  redis.call('HSET', KEYS[META], field, cursor)
end
local mended, wakes = 0, false

-- Removes a field that nothing needs.
local function drop(key, field)
  mended = mended + 1
  if not is_dry then
    redis.call('HDEL', key, field)
  end
end

-- Lets a message be served again that nothing leads to.
local function find_again(id, d)
  local text = redis.call('HGET', KEYS[MESSAGES], id)
  local m = text and parts_of_message(text)
  if not m then
    return
  end
  mended = mended + 1
  if not is_dry then
    local a = account_of_some(KEYS, facts, m.account, at)
    if a then
      local tag_before = a.tag
      if d and d.place == '-' or not d and string.find(id, '-2-', 1, true) then
        -- It was delayed, and that was lost.
        a.delayed = math.max(0, a.delayed - 1)
      end
      put_back(KEYS, a, id, d, m)
      wakes = settle_place(KEYS, facts, m.account, a, settings_of(KEYS, facts, m.account, a), at, tag_before) or wakes
      save_account(KEYS, m.account, a)
    end
  end
end

local mend = {}

function mend.accounts(account, text)
  local a = record_of(KEYS[ACCOUNTS], account, text)
  if not a then
    -- Its messages are found again by their own part.
    unbelieved = nil
    drop(KEYS[ACCOUNTS], account)
    return
  end
  local flying, tag_before = a.flying, a.tag
  local places = { [IS_READY] = READY, [IS_LIMITED] = LIMITED, [IS_IDLE] = IDLE }
  local is_lost = places[a.place] and not redis.call('ZSCORE', KEYS[places[a.place]], account)
  if a.flying > 0 then
    -- No account has more in hand than there are deliveries.
    a.flying = math.min(a.flying, math.max(redis.call('ZCARD', KEYS[LEASES]), redis.call('HLEN', KEYS[HELD])))
  end
  if a.delayed > 0 and redis.call('ZCARD', KEYS[PARKED]) == 0 then
    a.delayed = 0
  end
  if is_lost then
    a.place = NOWHERE
  end
  if is_dry then
    mended = mended + ((is_lost or a.flying ~= flying) and 1 or 0)
    return
  end
  local s = settings_of(KEYS, facts, account, a)
  local place = a.place
  wakes = settle_place(KEYS, facts, account, a, s, at, tag_before) or wakes
  save_account(KEYS, account, a)
  if is_lost or a.place ~= place then
    mended = mended + 1
  end
end

function mend.messages(id, text)
  local m = parts_of_message(text)
  if not m then
    return
  end
  if m.deadline > 0 and not redis.call('ZSCORE', KEYS[DEADLINES], id) then
    mended = mended + 1
    if not is_dry then
      redis.call('ZADD', KEYS[DEADLINES], m.deadline, id)
    end
  end
  if redis.call('HEXISTS', KEYS[HELD], id) == 1 or redis.call('ZSCORE', KEYS[LEASES], id) or redis.call('ZSCORE', KEYS[PARKED], id) then
    return
  end
  local a = account_of(KEYS, m.account)
  if unbelieved then
    return
  end
  local epoch, lane, number = string.match(id, '^(%w+)%-(%d)%-(%d+)$')
  if not epoch then
    return
  end
  local is_there = a and epoch == a.epoch and (
    lane == '0' and tonumber(number) >= a.head and tonumber(number) < a.tail
    or lane == '1' and tonumber(number) >= a.head1 and tonumber(number) < a.tail1
  )
  if not is_there then
    find_again(id)
  end
end

function mend.held(id, _)
  local d = delivery_of(KEYS, id)
  if redis.call('HEXISTS', KEYS[MESSAGES], id) == 0 then
    mended = mended + 1
    if not is_dry then
      redis.call('HDEL', KEYS[HELD], id)
      redis.call('ZREM', KEYS[LEASES], id)
      local was_parked = redis.call('ZREM', KEYS[PARKED], id) == 1
      local a = d and (d.is_flying or was_parked) and account_of(KEYS, d.account)
      if a then
        local tag_before = a.tag
        if was_parked then
          a.delayed = math.max(0, a.delayed - 1)
        else
          a.flying = math.max(0, a.flying - 1)
        end
        wakes = settle_place(KEYS, facts, d.account, a, settings_of(KEYS, facts, d.account, a), at, tag_before) or wakes
        save_account(KEYS, d.account, a)
      end
    end
  elseif not d then
    drop(KEYS[HELD], id)
  elseif d.is_flying then
    if not redis.call('ZSCORE', KEYS[LEASES], id) then
      -- It lapses now, unless its consumer comes first.
      mended = mended + 1
      if not is_dry then
        redis.call('ZADD', KEYS[LEASES], at, id)
        look_at(KEYS, facts, at)
      end
    end
  elseif redis.call('HGET', KEYS[BACK], d.place) ~= id and not redis.call('ZSCORE', KEYS[PARKED], id) then
    find_again(id, d)
  end
end

function mend.back(field, id)
  local text = redis.call('HGET', KEYS[MESSAGES], id)
  local m = text and parts_of_message(text)
  local a = m and account_of(KEYS, m.account)
  if unbelieved then
    return
  end
  local epoch, number = string.match(field, '^(%w+):(%d+)$')
  if a and epoch == a.epoch and tonumber(number) >= a.first and tonumber(number) < a.last then
    return
  end
  -- A field of a message that has gone is a hole that a read would pass over, or nothing leads to it.
  if not is_dry then
    redis.call('HDEL', KEYS[BACK], field)
  end
  local d = m and delivery_of(KEYS, id)
  if m and not (d and d.is_flying) then
    find_again(id, d or nil)
  else
    mended = mended + 1
  end
end

function mend.tracking(field, id)
  if redis.call('HEXISTS', KEYS[MESSAGES], id) == 0 then
    drop(KEYS[TRACKING], field)
  end
end

function mend.dedupe(field, text)
  local id, ends, lasts = deduped_by(text)
  local holds = id and lasts and ends > at
  if not holds and (lasts or redis.call('HEXISTS', KEYS[MESSAGES], id or '') == 0) then
    drop(KEYS[DEDUPE], field)
  end
end

function mend.reads(field, text)
  local moment = moment_of_receipt(text)
  if string.find(field, '^read:') and not (moment and moment + UNDER_WAY_MS > at) then
    drop(KEYS[META], field)
  end
end

if part == 'accounts' and not found[4] and redis.call('EXISTS', KEYS[RULES]) == 1 then
  -- A queue that has lost its facts would not know that there are rules, and serve what is paused.
  mended = mended + 1
  if not is_dry then
    facts.rules = note_rules(KEYS, at)
  end
end
for i = 1, #page, 2 do
  mend[part](page[i], page[i + 1])
  if unbelieved then
    return unbelieved
  end
end
if wakes and ARGV[4] == '1' then
  notify(KEYS[NOTIFICATIONS], 'm')
end
return { cursor, mended }
