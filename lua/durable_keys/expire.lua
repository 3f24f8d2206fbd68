-- EXPIRE, PEXPIRE, EXPIREAT or PEXPIREAT key amount [NX | XX | GT | LT], for a durable key.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   ARGV[1] mark
--   ARGV[2] the command's name for its errors
--   ARGV[3] the ms of one unit
--   ARGV[4] 1 if the amount is counted from now, else 0
--   ARGV[5] the amount
--   ARGV[6..] the conditions as the command takes them
-- Returns 1 if the deadline was set, or the key deleted because it has passed; else 0.
--@include keys
--@include conditions
local LEAST_SECONDS = -9223372036854775 -- beyond it they have no milliseconds in 64 bits
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local at, unit_ms, amount = now(), tonumber(ARGV[3]), ARGV[5]
local is, problem = read_conditions(ARGV, 6)
if not is then
  return problem
end
if not is_integer(amount) then
  return redis.error_reply('ERR value is not an integer or out of range')
end
local wanted = tonumber(amount) * unit_ms + (ARGV[4] == '1' and at or 0)
if wanted > LAST_DEADLINE or (unit_ms > 1 and tonumber(amount) < LEAST_SECONDS) then
  return deadline_error(ARGV[2])
end
local kind, deadline, found
problem, kind, deadline, found = refuse(key, due, mark, ARGV[1], at)
if problem then
  return problem
end
if kind == 'none' or not is_met(is, deadline, wanted) then
  return 0
end
return set_deadline(key, due, mark, ARGV[1], found, wanted, at) or 1
