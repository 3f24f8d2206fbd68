--@library
-- Serving messages: the ready account with the least tag has its turn. What is due is let in before.
--@include message

-- Bounds what one call passes over, and what it lets in.
local LOOKS, LET_IN = 16, 8

-- Lets delayed messages and limited accounts in, whose time has come. Returns whether sleepers are to be
-- woken.
local function let_in(keys, facts, at)
  local wakes = false
  local parked = redis.call('ZRANGEBYSCORE', keys[PARKED], '-inf', at, 'LIMIT', 0, LET_IN)
  for _, id in ipairs(parked) do
    redis.call('ZREM', keys[PARKED], id)
    local m = parts_of_message(redis.call('HGET', keys[MESSAGES], id) or '')
    if m then
      local a = account_of_some(keys, facts, m.account, at)
      if a then
        local tag_before = a.tag
        a.delayed = math.max(0, a.delayed - 1)
        put_back(keys, a, id, delivery_of(keys, id), m)
        local s = settings_of(keys, facts, m.account, a)
        wakes = settle_place(keys, facts, m.account, a, s, at, tag_before) or wakes
        save_account(keys, m.account, a)
      end
    end
  end
  local limited = redis.call('ZRANGEBYSCORE', keys[LIMITED], '-inf', at, 'LIMIT', 0, LET_IN)
  for _, account in ipairs(limited) do
    local a = account_of(keys, account)
    if a then
      local s = settings_of(keys, facts, account, a)
      a.place = IS_LIMITED
      wakes = settle_place(keys, facts, account, a, s, at, a.tag) or wakes
      save_account(keys, account, a)
    else
      redis.call('ZREM', keys[LIMITED], account)
    end
  end
  return wakes
end

-- The first moment, in ms, at which a delivery lapses, or something that is delayed or limited may be served; nil
-- without any.
local function next_moment(keys)
  local first
  for i = 1, 3 do
    local key = keys[i == 1 and LEASES or i == 2 and PARKED or LIMITED]
    local moment = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
    if moment and moment <= MOST_STORED and not (first and first <= moment) then
      first = moment
    end
  end
  return first
end

-- Takes the id of the next message of an account: one that was given back, or else one of the higher priority, unless
-- it is the lower one's share. Returns nil for a hole.
local function next_id(keys, a, s)
  if a.first < a.last then
    local field = a.epoch .. ':' .. whole(a.first)
    local id = redis.call('HGET', keys[BACK], field)
    redis.call('HDEL', keys[BACK], field)
    a.first = a.first + 1
    return id
  end
  local is_higher = a.head1 < a.tail1
  if is_higher and a.head < a.tail then
    a.credit = a.credit + s.lower
    is_higher = a.credit < 1000
    a.credit = is_higher and a.credit or a.credit - 1000
  end
  if is_higher then
    a.head1 = a.head1 + 1
    return a.epoch .. '-1-' .. whole(a.head1 - 1)
  elseif a.head < a.tail then
    a.head = a.head + 1
    return a.epoch .. '-0-' .. whole(a.head - 1)
  end
end

-- Counts a first delivery by its pickup delay, a power of two as top.
local function delay_field(ms)
  local top = 1
  while top < ms do
    top = top * 2
  end
  return 'delay:' .. whole(top)
end

-- Serves up to `most` messages. consumer, lease in ms, attempts after which a message is set aside, whether all
-- are to be of one account, the moment in ms. Returns a list of { id, delivery, attempts, text }, whether the ready
-- are known to be none, and whether sleepers are to be woken.
local function serve(keys, facts, consumer, most, lease, most_attempts, is_batch, at)
  local served, looks, is_empty, wakes = {}, 0, false, false
  if facts.look <= at then
    wakes = let_in(keys, facts, at)
    -- A few lapsed deliveries, so that a full queue does not wait for recruits either.
    local _, woken = reclaim(keys, facts, LET_IN, most_attempts, at)
    wakes = wakes or woken
    local look = next_moment(keys) or at + lease
    if look ~= facts.look then
      facts.look = look
      redis.call('HSET', keys[META], 'look', whole(look))
    end
  end
  while #served < most and looks < LOOKS do
    local head = redis.call('ZRANGE', keys[READY], 0, 0, 'WITHSCORES')
    local account = head[1]
    if not account then
      -- What is due has been let in; more of it waits only if there was much.
      is_empty = facts.look > at
      break
    else
      local a = account_of(keys, account)
      if unbelieved then
        return served, false, wakes
      end
      if not a then
        redis.call('ZREM', keys[READY], account)
        looks = looks + 1
      else
        local tag_before, s = a.tag, settings_of(keys, facts, account, a)
        local began = #served
        a.place = IS_READY
        facts.now = math.max(facts.now, a.tag)
        repeat
          if facts.rules > 0 then
            -- A rule that has changed since may say that it has no turn.
            settle_place(keys, facts, account, a, s, at, tag_before)
            tag_before = a.tag
          end
          local is_back = a.first < a.last
          local id = a.place == IS_READY and next_id(keys, a, s)
          local text = id and redis.call('HGET', keys[MESSAGES], id)
          local written, deadline, is_named = head_of(text)
          -- Only a message that was given back has been delivered before. After a repair it may stand there twice.
          local before = written and is_back and delivery_of(keys, id)
          if before and before.is_flying then
            written = nil
          end
          if not written then
            looks = looks + 1
          else
            a.waiting = math.max(0, a.waiting - 1)
            if deadline > 0 and deadline <= at then
              end_message(keys, id, true)
              redis.call('HINCRBY', keys[META], 'overdue', 1)
              looks = looks + 1
            else
              local charge = math.max(1, math.floor((a.estimate > 0 and a.estimate or s.estimate or FIRST_ESTIMATE)))
              facts.delivery = facts.delivery + 1
              local d = {
                number = whole(facts.delivery), attempts = (before and before.attempts or 0) + 1, start = at,
                charge = charge, is_named = is_named, is_flying = true, place = '-', consumer = consumer, account = account,
              }
              redis.call('ZADD', keys[LEASES], at + lease, id)
              save_delivery(keys, id, d)
              a.flying = a.flying + 1
              a.tag = a.tag + math.max(1, math.ceil(a.tag / 2251799813685248), math.floor(charge * 1000 / s.weight))
              if s.period then
                a.allowed = math.max(a.allowed, at * 1000) + s.period
              end
              if d.attempts == 1 then
                redis.call('HINCRBY', keys[META], delay_field(math.max(0, at - written)), 1)
              else
                redis.call('HINCRBY', keys[META], 'redelivered', 1)
              end
              served[#served + 1] = { id, d.number, d.attempts, text }
            end
          end
          settle_place(keys, facts, account, a, s, at, tag_before)
          tag_before = a.tag
        until a.place ~= IS_READY or #served == most or looks >= LOOKS or #served > began and not is_batch
        save_account(keys, account, a)
        if #served > 0 and is_batch then
          most = #served
        end
      end
    end
  end
  if #served > 0 then
    if at + lease < facts.look then
      -- Other consumers may have longer leases.
      look_at(keys, facts, at + lease)
    end
    redis.call('HSET', keys[META], 'now', whole(facts.now), 'delivery', whole(facts.delivery))
  end
  return served, is_empty, wakes
end
