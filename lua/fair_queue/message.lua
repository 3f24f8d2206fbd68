--@library
-- The messages of a fair queue: their texts, their deliveries, and how they end.
--@include account

-- A message is `written deadline priority sizes...`, then its tenant, tracking id, dedupe key and account (nothing
-- if that is the tenant), then the user's fields as the client packs them. Times are ms; no deadline is 0.
local MESSAGE = '^(%d+) (%d+) (%d) (%d+) (%d+) (%d+) (%d+) ()'

-- The parts of a message that scripts need; nil for a text that is none.
local function parts_of_message(text)
  local written, deadline, priority, tenant, tracked, deduped, account, at = string.match(text, MESSAGE)
  if not written then
    return nil
  end
  local from = at + tenant
  local m = { written = tonumber(written), deadline = tonumber(deadline), priority = tonumber(priority) }
  m.tracked = string.sub(text, from, from + tracked - 1)
  from = from + tracked
  m.deduped = string.sub(text, from, from + deduped - 1)
  from = from + deduped
  m.account = account == '0' and string.sub(text, at, at + tenant - 1) or string.sub(text, from, from + account - 1)
  -- Whether keys beside the message name it.
  m.is_named = tracked ~= '0' or deduped ~= '0' or deadline ~= '0'
  return m
end

-- When a message was written, and its deadline, in ms, and whether keys beside it name it; nil for a text that is none.
local function head_of(text)
  local written, deadline, tracked, deduped = string.match(text or '', '^(%d+) (%d+) %d %d+ (%d+) (%d+) %d+ ')
  if written then
    return tonumber(written), tonumber(deadline), deadline ~= '0' or tracked ~= '0' or deduped ~= '0'
  end
end

-- A delivery is `number attempts start charge named flying place size consumer account`: start in ms, charge in us. It stays
-- when the message is given back, with flying = 0, so that its attempts are known; then its place among those that were
-- given back is `epoch:n`, and else `-`. A message that was not delivered, and waits there, has one with the number 0.
local DELIVERY = '^(%d+) (%d+) (%d+) (%d+) ([01]) ([01]) (%S+) (%d+) ()'

-- The last delivery of a message; nil if it was not delivered, or for a text that is none.
local function delivery_of(keys, id)
  local text = redis.call('HGET', keys[HELD], id)
  local number, attempts, start, charge, named, flying, place, size, at = string.match(text or '', DELIVERY)
  if not number then
    return nil
  end
  return {
    number = number, attempts = tonumber(attempts), start = tonumber(start), charge = tonumber(charge),
    is_named = named == '1', is_flying = flying == '1', place = place, consumer = string.sub(text, at, at + size - 1),
    account = string.sub(text, at + size),
  }
end

local function save_delivery(keys, id, d)
  -- Lua writes these numbers in full: they have at most 14 digits.
  redis.call(
    'HSET', keys[HELD], id, d.number .. ' ' .. d.attempts .. ' ' .. d.start .. ' ' .. d.charge .. (d.is_named and ' 1 ' or ' 0 ')
      .. (d.is_flying and '1 ' or '0 ') .. d.place .. ' ' .. #d.consumer .. ' ' .. d.consumer .. d.account
  )
end

-- What a dedupe key holds: the id of its message, the end of its window in ms, and whether it holds until then though
-- the message has ended (a `+` after the end; such a message does not know its key). nil for a text that is none.
local function deduped_by(text)
  local id, ends, lasts = string.match(text, '^(%S+) (%d+)( ?%+?)$')
  return id, tonumber(ends), lasts == ' +'
end

-- Forgets what names a message beside it: its tracking id, its dedupe key, its deadline.
local function unname(keys, id, m)
  if m.tracked ~= '' and redis.call('HGET', keys[TRACKING], m.tracked) == id then
    redis.call('HDEL', keys[TRACKING], m.tracked)
  end
  if m.deduped ~= '' and string.match(redis.call('HGET', keys[DEDUPE], m.deduped) or '', '^%S+') == id then
    redis.call('HDEL', keys[DEDUPE], m.deduped)
  end
  if m.deadline > 0 then
    redis.call('ZREM', keys[DEADLINES], id)
  end
end

-- Ends a message that has left its account's counts: deletes it, with what names it.
local function end_message(keys, id, is_named)
  if is_named then
    --@include message
    local m = parts_of_message(redis.call('HGET', keys[MESSAGES], id) or '')
    if m then
      unname(keys, id, m)
    end
  end
  redis.call('HDEL', keys[MESSAGES], id)
  redis.call('HDEL', keys[HELD], id)
end

-- Lets a message be served again, before those that wait in its account. d: its last delivery, nil if there was none;
-- m: then the message's parts.
local function put_back(keys, a, id, d, m)
  d = d or { number = '0', attempts = 0, start = 0, charge = 0, is_named = m.is_named, consumer = '', account = m.account }
  d.is_flying, d.place = false, a.epoch .. ':' .. whole(a.last)
  save_delivery(keys, id, d)
  redis.call('HSET', keys[BACK], d.place, id)
  a.last, a.waiting = a.last + 1, a.waiting + 1
end

-- Sets a message aside that was delivered too often. at: ms.
local function bury(keys, id, d, at)
  local text = redis.call('HGET', keys[MESSAGES], id)
  local m = text and parts_of_message(text)
  if m then
    redis.call('HSET', keys[DEAD], id, string.format('%d %.0f %.0f ', d.attempts, d.start, at) .. text)
    unname(keys, id, m)
  end
  redis.call('HDEL', keys[MESSAGES], id)
  redis.call('HDEL', keys[HELD], id)
end

-- Ends deliveries whose lease has lapsed: at most so many. Their slots are free again, their messages are served
-- again, or set aside. They are charged the estimate that was charged already: to charge the lease would keep a quiet
-- tenant waiting for its dead consumers. Returns how many, and whether sleeping readers are to be woken.
local function reclaim(keys, facts, most, most_attempts, at)
  local lapsed = redis.call('ZRANGEBYSCORE', keys[LEASES], '-inf', at, 'LIMIT', 0, most)
  local wakes = false
  for _, id in ipairs(lapsed) do
    redis.call('ZREM', keys[LEASES], id)
    local d = delivery_of(keys, id)
    -- A queue that has lost its deliveries knows the account by the message.
    local m = not d and parts_of_message(redis.call('HGET', keys[MESSAGES], id) or '')
    local account = d and d.account or m and m.account
    local a = account and account_of_some(keys, facts, account, at)
    if a then
      local tag_before = a.tag
      a.flying = math.max(0, a.flying - 1)
      if d and d.attempts >= most_attempts then
        bury(keys, id, d, at)
      else
        put_back(keys, a, id, d, m)
      end
      local s = settings_of(keys, facts, account, a)
      wakes = settle_place(keys, facts, account, a, s, at, tag_before) or wakes
      save_account(keys, account, a)
    end
  end
  if #lapsed > 0 then
    redis.pcall('HINCRBY', keys[META], 'lapsed', #lapsed)
  end
  return #lapsed, wakes
end

-- Passes over some holes at the heads of an account, so that its first message is one that waits.
local function pass_holes(keys, a)
  for _ = 1, 16 do
    if a.first < a.last then
      local field = a.epoch .. ':' .. whole(a.first)
      local id = redis.call('HGET', keys[BACK], field)
      if id and redis.call('HEXISTS', keys[MESSAGES], id) == 1 then
        break
      end
      redis.call('HDEL', keys[BACK], field)
      a.first = a.first + 1
    elseif a.head < a.tail and redis.call('HEXISTS', keys[MESSAGES], a.epoch .. '-0-' .. whole(a.head)) == 0 then
      a.head = a.head + 1
    elseif a.head1 < a.tail1 and redis.call('HEXISTS', keys[MESSAGES], a.epoch .. '-1-' .. whole(a.head1)) == 0 then
      a.head1 = a.head1 + 1
    else
      break
    end
  end
end

-- Takes a message out of its account, wherever it is, and ends it. a: the account's record.
local function take_out(keys, a, id, d)
  if d and d.is_flying then
    redis.call('ZREM', keys[LEASES], id)
    a.flying = math.max(0, a.flying - 1)
  elseif redis.call('ZREM', keys[PARKED], id) == 1 then
    a.delayed = math.max(0, a.delayed - 1)
  else
    a.waiting = math.max(0, a.waiting - 1)
    if d then
      redis.call('HDEL', keys[BACK], d.place)
    end
  end
  end_message(keys, id, not d or d.is_named)
  if not (d and d.is_flying) then
    --@include message
    pass_holes(keys, a)
  end
end
