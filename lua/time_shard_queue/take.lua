-- Leases due messages of a time shard, the lowest due time first, and then messages whose lease has ended. On
-- its way it applies releases and clears consumed messages away, a bounded number of them. The receipt has
-- the caller's nonce in its name, and says what was leased: asked again with the same nonce, the
-- script gives the same answer.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] leased
--   KEYS[4] messages
--   KEYS[5] history
--   KEYS[6] consumed
--   KEYS[7] released
--   KEYS[8] dead
--   KEYS[9] receipt
--   ARGV[1] the caller's mark
--   ARGV[2] the consumer
--   ARGV[3] the lease in ms
--   ARGV[4] the most messages
--   ARGV[5] after how many attempts a message is set aside
--   ARGV[6] how many others to look at
--   ARGV[7] for how many ms the receipt is kept
-- Returns { 1 if there is more to look at, else 0; the end of the leases; then for each message its id, text,
-- due time, attempts and token }.
--@include settle
--@include clock
local mark, waiting, leased, messages, history, consumed, released, dead, receipt_key = unpack(KEYS)
local problem = refuse(mark, ARGV[1], KEYS, KINDS) or refuse_key('STRLEN', receipt_key, 'the receipt of a take')
if problem then
  return problem
end
local time = now()
local instant, ends = string.format('%.0f', time), string.format('%.0f', time + ARGV[3])
local wanted, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local window = wanted + tonumber(ARGV[6])
local taken, found = 0, { 0, ends }
local receipt = {}

local function tell(id, message, due, takes, given_back)
  for _, part in ipairs({
    id, message, string.format('%.0f', due), takes - given_back, string.format('%.0f', takes),
  }) do
    found[#found + 1] = part
  end
end

-- What was leased under this nonce before, as far as the leases hold; nothing after it was withdrawn.
local before = redis.call('GET', receipt_key)
if before then
  local more, until_ms, held = string.match(before, '^(%d) (%d+) (.*)$')
  if more then
    found = { tonumber(more), until_ms }
    for id, of in string.gmatch(held, '(%S+) (%S+)') do
      local message = redis.call('HGET', messages, id)
      local takes, given_back, due = read_history(redis.call('HGET', history, id), history)
      if message and takes == of and redis.call('SISMEMBER', consumed, id) == 0 then
        tell(id, message, due, takes, given_back)
      end
    end
  end
  return unbelieved or found
end

local function lease(id, due)
  local message = redis.call('HGET', messages, id)
  if not message then
    clear(waiting, leased, messages, history, consumed, released, dead, id)
    return
  end
  local takes, given_back = read_history(redis.call('HGET', history, id), history)
  if takes == false then
    return
  end
  if takes then
    -- After the end of the lease its holder may still have said when the message is to come again.
    local entry = takes .. ' ' .. id
    local later = redis.call('ZSCORE', released, entry)
    if later and tonumber(later) > time then
      settle_release(waiting, leased, history, consumed, released, entry, later)
      return
    end
  end
  redis.call('ZREM', waiting, id)
  takes, given_back = (takes or 0) + 1, given_back or 0
  redis.call('ZADD', leased, ends, id)
  redis.call('HSET', history, id, write_history(takes, given_back, due, ARGV[2]))
  taken = taken + 1
  tell(id, message, due, takes, given_back)
  receipt[#receipt + 1] = id .. ' ' .. string.format('%.0f', takes)
end

local back = redis.call('ZRANGEBYSCORE', released, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, window)
for i = 1, #back, 2 do
  settle_release(waiting, leased, history, consumed, released, back[i], back[i + 1])
end

local ready = redis.call('ZRANGEBYSCORE', waiting, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, window)
for i = 1, #ready, 2 do
  if taken == wanted then
    break
  end
  if redis.call('SISMEMBER', consumed, ready[i]) == 1 then
    clear(waiting, leased, messages, history, consumed, released, dead, ready[i])
  elseif is_moment(waiting, ready[i + 1]) then
    lease(ready[i], ready[i + 1])
  end
end
local more = #ready == 2 * window or #back == 2 * window

if taken < wanted and #ready < 2 * window then
  local ended = redis.call('ZRANGEBYSCORE', leased, '-inf', instant, 'LIMIT', 0, window)
  for _, id in ipairs(ended) do
    if taken == wanted then
      break
    end
    local fate, due = settle_ended(waiting, leased, messages, history, consumed, released, dead, id, instant, most)
    if fate == 'ended' then
      lease(id, due)
    end
  end
  more = more or #ended == window
end
-- What can be believed is leased first; a person is told when nothing else is left.
if taken == 0 and unbelieved then
  return unbelieved
end
found[1] = taken < wanted and more and 1 or 0
if taken > 0 then
  redis.call('SET', receipt_key, found[1] .. ' ' .. ends .. ' ' .. table.concat(receipt, ' '), 'PX', ARGV[7])
end
return found
