-- Stores a field by its computer, which must still have the lease; or by anybody, who ends the
-- lease.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   KEYS[5] leases
--   ARGV[1] mark
--   ARGV[2] HSETEX if the server keeps deadlines (else '')
--   ARGV[3] FIELDS
--   ARGV[4] 1
--   ARGV[5] the field
--   ARGV[6] nonce ('': by anybody)
--   ARGV[7] for how long in ms ('': for ever)
--   ARGV[8] FNX (only if there is no such field) or ''
--   ARGV[9] the value
--   ARGV[10] when the nonce took the lease (us); at another time, a late request has taken the
--     lease anew
-- Returns 1; or 0 if the lease has ended, another nonce has the lease, the lease was voided, or FNX
-- is not met; or an error reply, for instance for a deadline past the year 4199. With 0 and an
-- error nothing was changed.
--@include leases
local hash, deadlines, due, mark, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem = refuse_layout(mark, ARGV[1]) or refuse_leases(leases)
if problem then
  return problem
end
local at, field, nonce, ms, value = now(), ARGV[5], ARGV[6], ARGV[7], ARGV[9]
local holder, taken = lease_on(leases, field, at)
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
  void(leases, { field })
  return 1
end
do
  --@include hash
  problem = refuse(hash, deadlines, due, mark, ARGV[1])
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
  drop_past(hash, deadlines, { field })
  if ARGV[8] == 'FNX' and redis.call('HEXISTS', hash, field) == 1 then
    return 0
  end
  if deadline then
    problem = schedule(due, hash, deadline)
    if problem then
      return problem
    end
    set_deadline(deadlines, { field }, deadline)
  end
  set_values(hash, { field, value })
  if not deadline then
    clear_deadline(deadlines, { field })
    tidy(hash, deadlines, due)
  end
  void(leases, { field })
  return 1
end
