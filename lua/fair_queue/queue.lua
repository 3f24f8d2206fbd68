--@library
-- The keys and the facts of a fair queue, for all of its scripts. Each script is passed the same keys, in
-- this order. A script by which the queue is in use has the ARGV that shared/queue_place.lua names.
--   meta, a hash: mark, namespace, now (virtual time), delivery (the last number), epochs (the last one),
--     rules (their version), patterns (of rules, each as `length:pattern`), counts, and read:O, the receipt of a
--     reader with the nonce O, see receipts.lua
--@include clock
--@include layout
--@include values
--@include stored
--@include queue_place
--@include notify

local META, ACCOUNTS, RULES, READY, MESSAGES, LEASES, HELD, BACK = 1, 4, 5, 6, 7, 8, 9, 10
local PARKED, LIMITED, IDLE, DEAD, TRACKING, DEDUPE, DEADLINES = 11, 12, 13, 14, 15, 16, 17
local NOTIFICATIONS, CONSUMERS = 18, 19

-- A score is passed as the number that it is: the server reads each form in which it may be written. A field is
-- written by whole(), because later servers write a number like 1800000000000 with an exponent.

-- The value of `mark` in a fair queue's meta.
local FAIR_VERSION = '1'

-- Refuses facts, which begin with the mark, that are no fair queue's. reads: whether the script only
-- reads. Returns an error reply, or nil; then the second value says whether it may only read.
local function refuse_facts(meta, facts, reads)
  if facts.err then
    --@include layout
    return refusal(facts, meta, 'does not hold the facts of a fair queue')
  end
  if facts[1] and facts[1] ~= FAIR_VERSION then
    --@include layout
    return refuse_version(meta, facts[1], FAIR_VERSION, reads)
  end
end

-- Whether a queue has gone since the caller was here, and its namespace perhaps, without which no job finds it. mark: of
-- the queue; is_placed: '1' if the caller has just seen that the namespace is there.
local function is_gone(mark, is_placed)
  return not mark and is_placed ~= '1'
end

-- Lets a full server run the rest of a script that makes room: it refuses most writes as a script's first one, and allows
-- them behind a removal. No account has an empty name.
local function begin_on_full(keys)
  redis.call('ZREM', keys[READY], '')
end

-- The types of the keys from `ready` on, as TYPE names them.
local WANTED_TYPES = {
  'hash', 'hash', 'zset', 'hash', 'zset', 'hash', 'hash',
  'zset', 'zset', 'zset', 'hash', 'hash', 'hash', 'zset', 'stream', 'zset',
}

-- Refuses keys of another type than they should have. Returns an error reply or nil.
local function refuse_types(keys)
  for i = ACCOUNTS, CONSUMERS do
    local kind, wanted = redis.call('TYPE', keys[i]).ok, WANTED_TYPES[i - META - 2]
    if kind ~= 'none' and kind ~= wanted then
      return layout_error(keys[i], 'holds a ' .. kind .. ' where a ' .. wanted .. ' was expected')
    end
  end
end
