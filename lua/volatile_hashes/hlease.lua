-- Takes the lease to compute a field, extends it, or answers the field's value, in one step.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   KEYS[5] leases
--   ARGV[1] mark
--   ARGV[2] HPTTL if the server may keep deadlines (else '')
--   ARGV[3] FIELDS
--   ARGV[4] 1
--   ARGV[5] the field
--   ARGV[6] nonce
--   ARGV[7] the lease's length in ms
--   ARGV[8] the longest it may be extended to in all
--   ARGV[9] the longest time that a value may have left without being the answer (-1: any value is the
--     answer; '': none is)
--   ARGV[10] how: '' or OVER (whoever holds it, and whatever is stored) or ONLY (it is only extended)
-- Returns a list: when the nonce took the lease that it has now (us), else 0; the value, or nil; its time
-- left in ms, -1 for ever. A nonce that asks again has its lease as it was. Nothing of the user's is changed.
--@include leases
local hash, deadlines, mark, leases = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local at = now()
local field, nonce, length, longest, how = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[10]
local problem = refuse_layout(mark, ARGV[1]) or refuse_leases(leases) or refuse_key('ZCARD', deadlines, 'the deadlines of a volatile hash')
if problem then
  return problem
end
local value, left = redis.pcall('HGET', hash, field), -1
if is_error(value) then
  return value
end
local deadline = value and redis.call('ZSCORE', deadlines, field)
if deadline then
  left = deadline - at
  value = left > 0 and value
elseif value and ARGV[2] ~= '' then
  left = redis.call(ARGV[2], hash, 'FIELDS', 1, field)[1]
end
local holder, taken = lease_on(leases, field, at)
local is_granted = holder == nonce
local is_answer = value and ARGV[9] ~= '' and (left < 0 or left > tonumber(ARGV[9]))
if is_granted and how == 'ONLY' then
  -- Up to the longest in all: from then on others need not believe that it comes to an end.
  length = math.min(length, math.floor(taken / 1000) + longest - at)
  if length > 0 then
    lay(leases, '=' .. field, whole(at + length) .. ' ' .. whole(taken) .. ' ' .. nonce, length)
  end
elseif not is_granted and how ~= 'ONLY' and (how == 'OVER' or not holder and not is_answer) then
  -- Given back before it was asked for: this request was under way for longer than its caller waited.
  local over = string.match(redis.call('HGET', leases, '-' .. nonce) or '', '^%d+$')
  if not over or tonumber(over) <= at then
    prune(leases, at)
    is_granted, taken = true, micros()
    lay(leases, '=' .. field, whole(at + length) .. ' ' .. whole(taken) .. ' ' .. nonce, length)
  end
end
return { is_granted and taken or 0, value, left }
