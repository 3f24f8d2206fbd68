--@library
-- The end of deliveries. An ack names the delivery: by the message's id alone, a slow consumer would free the slot of
-- the one that has the message since.
--@include message

-- The delivery that a consumer means; nil if the message has gone, or was delivered again since. That holds for one
-- that waits, too: a server that came back with older data gives the ids of lost messages again, and the ack of a lost
-- one must not end another.
local function meant_by(keys, id, number)
  local d = delivery_of(keys, id)
  if d and d.number == number then
    return d
  end
end

-- Charges an account for the work of a delivery instead of the estimate. used: us, '' for the time since the delivery.
local function charge_work(facts, a, s, d, used, at)
  used = tonumber(used) or (at - d.start) * 1000
  used = math.max(0, math.min(used, 86400000000))
  -- What comes back of the estimate was charged in a time that may be over: it is no credit before the virtual time.
  local floor = math.min(a.tag, facts.now)
  a.tag = math.max(floor, a.tag + math.floor((used - d.charge) * 1000 / s.weight + 0.5))
  a.estimate = a.estimate == 0 and math.max(1, used) or math.max(1, math.floor(a.estimate + (used - a.estimate) / 8 + 0.5))
end

-- Settles deliveries that a consumer means: for each an id, a delivery, and the work in us or ''. goes: what becomes
-- of those in flight: called with the account's record, the id and the delivery. Returns how many, and whether sleepers
-- are to be woken.
local function settle(keys, facts, args, first, at, goes)
  local settled, wakes = 0, false
  for i = first, #args, 3 do
    local id = args[i]
    local d = meant_by(keys, id, args[i + 1])
    local a = d and (d.is_flying or goes == nil) and account_of_some(keys, facts, d.account, at)
    if unbelieved then
      return settled, wakes
    end
    if a then
      local tag_before, s = a.tag, settings_of(keys, facts, d.account, a)
      if d.is_flying then
        charge_work(facts, a, s, d, args[i + 2], at)
      end
      if goes then
        redis.call('ZREM', keys[LEASES], id)
        a.flying = math.max(0, a.flying - 1)
        goes(a, id, d)
      else
        -- A slow consumer's message may wait again: then nobody gets it any more.
        take_out(keys, a, id, d)
      end
      wakes = settle_place(keys, facts, d.account, a, s, at, tag_before) or wakes
      save_account(keys, d.account, a)
      settled = settled + 1
    end
  end
  return settled, wakes
end
