-- EXPIRE, PEXPIRE, EXPIREAT or PEXPIREAT key amount [NX | XX | GT | LT], for a durable key.
-- KEYS: key, due index, mark. ARGV: mark, the command's name for its errors, the ms of one unit, 1 if
-- the amount is counted from now else 0, the amount, then the conditions as the command takes them.
-- Returns 1 if the deadline was set, or the key deleted because it has passed; else 0.
--@include keys
local LEAST_SECONDS = -9223372036854775 -- beyond it they have no milliseconds in 64 bits
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local at, unit_ms, amount = now(), tonumber(ARGV[3]), ARGV[5]
local is = {}
for i = 6, #ARGV do
  local word = string.upper(ARGV[i])
  if word ~= 'NX' and word ~= 'XX' and word ~= 'GT' and word ~= 'LT' then
    return redis.error_reply('ERR Unsupported option ' .. ARGV[i])
  end
  is[word] = true
end
if is.NX and (is.XX or is.GT or is.LT) then
  return redis.error_reply(
    'ERR NX and XX, GT or LT options at the same time are not compatible'
  )
end
if is.GT and is.LT then
  return redis.error_reply('ERR GT and LT options at the same time are not compatible')
end
if not is_integer(amount) then
  return redis.error_reply('ERR value is not an integer or out of range')
end
local wanted = tonumber(amount) * unit_ms + (ARGV[4] == '1' and at or 0)
if wanted > LAST_DEADLINE or (unit_ms > 1 and tonumber(amount) < LEAST_SECONDS) then
  return deadline_error(ARGV[2])
end
local problem, kind, deadline, found = refuse(key, due, mark, at)
if problem then
  return problem
end
if
  kind == 'none'
  or (is.NX and deadline)
  or (is.XX and not deadline)
  or (is.GT and not (deadline and wanted > deadline))
  or (is.LT and deadline and wanted >= deadline)
then
  return 0
end
return set_deadline(key, due, mark, found, wanted, at) or 1
