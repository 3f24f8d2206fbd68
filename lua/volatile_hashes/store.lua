-- Stores a field by its computer, which must still have the lease; or by anybody, who ends the lease.
-- KEYS: hash, deadlines, due, mark, leases. ARGV: mark, HSETEX if the server keeps deadlines (else ''),
-- FIELDS, 1, the field, nonce ('': by anybody), for how long in ms ('': for ever), FNX (only if there is
-- no such field) or '', the value, when the nonce took the lease (us): a late request may have taken it anew.
-- Returns 1; or 0: the lease has ended, or another has it, or it was voided, or FNX is not met; or an error
-- reply, for a deadline past the year 4199, too. With 0 and an error nothing was changed.
--@include leases
local problem = refuse_layout() or refuse_leases()
if problem then
  return problem
end
local at, field, nonce, ms, value = now(), ARGV[5], ARGV[6], ARGV[7], ARGV[9]
local holder, taken = lease_on(field, at)
if nonce ~= '' and (holder ~= nonce or whole(taken) ~= ARGV[10]) then
  return 0
end
if ARGV[2] ~= '' then
  if ARGV[8] == 'FNX' then
    local found = redis.pcall('HEXISTS', KEYS[1], field)
    if found ~= 0 then
      return type(found) == 'table' and found or 0
    end
  end
  local reply
  if ms == '' then
    reply = redis.pcall('HSET', KEYS[1], field, value)
  else
    reply = redis.pcall(ARGV[2], KEYS[1], 'PX', ms, 'FIELDS', 1, field, value)
  end
  if is_error(reply) then
    return reply
  end
  void({ field })
  return 1
end
do
  --@include hash
  problem = refuse()
  if problem then
    return problem
  end
  local deadline
  if ms ~= '' then
    deadline, problem = deadline_from(ms, 1, true, 'hsetex', at)
    if not deadline then
      return problem
    end
  end
  drop_past({ field })
  if ARGV[8] == 'FNX' and redis.call('HEXISTS', hash, field) == 1 then
    return 0
  end
  if deadline then
    problem = schedule(deadline)
    if problem then
      return problem
    end
    set_deadline({ field }, deadline)
  end
  set_values({ field, value })
  if not deadline then
    clear_deadline({ field })
    tidy()
  end
  void({ field })
  return 1
end
