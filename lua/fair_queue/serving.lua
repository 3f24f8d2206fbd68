--@library
-- Serving messages: the ready account with the least tag has its turn. What is due is let in before.
--@include message

-- Bounds what one call passes over, and what it lets in.
local LOOKS, LET_IN = 16, 8

-- How much an account owes at most after a time in which nothing waited: us of work at weight 1.
local MOST_DEBT = 60000000

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
    local field = a.epoch .. ':' .. a.first
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
  return 'delay:' .. top
end

-- Ends the turn that an account has, which is out of the ready meanwhile. tag: with which it is ready again, false if it
-- is not.
local function end_turn(keys, facts, tag)
  if tag then
    redis.call('ZADD', keys[READY], tag, facts.turn)
  end
  facts.turn = nil
end

-- Serves up to `most` messages. The caller saves the virtual time and the last number of a delivery, and ends the turn
-- that a fault has left. consumer, lease in ms, attempts after which a message is set aside, whether all
-- are to be of one account, the moment in ms. Returns a list of { id, delivery, attempts, text }, whether the ready
-- are known to be none, and whether sleepers are to be woken.
local function serve(keys, facts, consumer, most, lease, most_attempts, is_batch, at)
  local served, looks, is_empty, wakes = {}, 0, false, false
  if facts.look <= at then
    --@include serving
    begin_on_full(keys)
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
    -- A full server allows this removal as a first write, and then the rest: its consumers make room.
    local account, tag = unpack(redis.call('ZPOPMIN', keys[READY]))
    if not account then
      -- What is due has been let in; more of it waits only if there was much.
      is_empty = facts.look > at
      if #served == 0 and redis.call('ZCARD', keys[LEASES]) == 0 then
        -- A busy time is over. Short pauses must not forgive what an account owes, but it need not pay for hours.
        local greatest = redis.call('ZREVRANGE', keys[IDLE], 0, 0, 'WITHSCORES')[2]
        if greatest and tonumber(greatest) - MOST_DEBT > facts.now then
          begin_on_full(keys)
          facts.now = tonumber(greatest) - MOST_DEBT
          redis.call('HSET', keys[META], 'now', whole(facts.now))
        end
      end
      break
    else
      facts.turn, facts.turn_tag = account, tag
      local a = account_of(keys, account)
      if unbelieved then
        -- What was served before is told.
        end_turn(keys, facts, tag)
        break
      end
      if not a then
        facts.turn = nil
        looks = looks + 1
      else
        local tag_before, s = a.tag, settings_of(keys, facts, account, a)
        local began = #served
        a.place, a.is_taken = IS_READY, true
        facts.now = math.max(facts.now, a.tag) + 1
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
          local before
          if written and is_back then
            --@include message
            before = delivery_of(keys, id)
          end
          if before and before.is_flying then
            written = nil
          end
          if not written then
            looks = looks + 1
          else
            a.waiting = math.max(0, a.waiting - 1)
            if deadline > 0 and deadline <= at then
              --@include message
              end_message(keys, id, true)
              redis.call('HINCRBY', keys[META], 'overdue', 1)
              looks = looks + 1
            else
              local charge = math.max(1, math.floor((a.estimate > 0 and a.estimate or s.estimate or FIRST_ESTIMATE)))
              facts.delivery = math.max(facts.delivery + 1, at * 100)
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
        end_turn(keys, facts, a.place == IS_READY and a.tag)
        if #served > 0 and is_batch then
          most = #served
        end
      end
    end
  end
  if #served > 0 and at + lease < facts.look then
    -- Other consumers may have longer leases.
    look_at(keys, facts, at + lease)
  end
  return served, is_empty, wakes
end
