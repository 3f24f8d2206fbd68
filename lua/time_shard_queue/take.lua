-- Leases due messages of a time shard, the lowest due time first, and then messages whose lease has
-- ended. On its way it applies releases and clears consumed messages away, a bounded number of them.
-- KEYS: mark, waiting, leased, messages, history, consumed, released, dead. ARGV: the caller's mark, the
-- consumer, the lease in ms, the most messages, after how many attempts a message is set aside, how many
-- others to look at.
-- Returns { 1 if there is more to look at, else 0; the end of the leases; then for each message its id,
-- text, due time, attempts and token }.
--@include settle
--@include clock
local problem = refuse(KINDS)
if problem then
  return problem
end
local time = now()
local instant, ends = string.format('%.0f', time), string.format('%.0f', time + ARGV[3])
local wanted, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local window = wanted + tonumber(ARGV[6])
local taken, found = 0, { 0, ends }

local function lease(id, due)
  local message = redis.call('HGET', messages, id)
  if not message then
    clear(id)
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
      settle_release(entry, later)
      return
    end
  end
  redis.call('ZREM', waiting, id)
  takes, given_back = (takes or 0) + 1, given_back or 0
  redis.call('ZADD', leased, ends, id)
  redis.call('HSET', history, id, write_history(takes, given_back, due, ARGV[2]))
  taken = taken + 1
  for _, part in ipairs({
    id, message, string.format('%.0f', due), takes - given_back, string.format('%.0f', takes),
  }) do
    found[#found + 1] = part
  end
end

local back = redis.call('ZRANGEBYSCORE', released, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, window)
for i = 1, #back, 2 do
  settle_release(back[i], back[i + 1])
end

local ready = redis.call('ZRANGEBYSCORE', waiting, '-inf', instant, 'WITHSCORES', 'LIMIT', 0, window)
for i = 1, #ready, 2 do
  if taken == wanted then
    break
  end
  if redis.call('SISMEMBER', consumed, ready[i]) == 1 then
    clear(ready[i])
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
    local fate, due = settle_ended(id, instant, most)
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
return found
