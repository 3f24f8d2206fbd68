--@library
-- The early end of leases, which writes no key that a sweeper WATCHes, and runs on a full server.
--   KEYS: mark, history, consumed, dead, released
--@include time_shard

-- Asks for the end of a message's lease; the next take, or a sweeper, applies it.
-- token: the lease's, '' for any holder's; ms: the due time ('': the old one); from_now: '1' if that counts from
-- now. Returns whether that lease holds still; false if what stands there cannot be believed.
local function ask_release(id, token, ms, from_now)
  local takes, _, due = read_history(redis.call('HGET', KEYS[2], id), KEYS[2])
  if unbelieved or not takes or (token ~= '' and token ~= takes) then
    return false
  end
  if redis.call('SISMEMBER', KEYS[3], id) == 1 or redis.call('ZSCORE', KEYS[4], id) then
    return false
  end
  if ms ~= '' then
    due = due_at(ms, from_now)
  end
  local entry = takes .. ' ' .. id
  -- After a removal a full server allows the rest of the script.
  redis.call('ZREM', KEYS[5], entry)
  redis.call('ZADD', KEYS[5], due, entry)
  return true
end
