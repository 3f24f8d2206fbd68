-- open_held(): what every commit of a leased ick shard begins with.
--   KEYS as ick_reservation has them; KEYS[6] the lease
--@include ick_reservation
--@include sharded_ick_lease

-- token: of the lease. Returns an error reply; or nil, the token of the reservation that holds, and the
-- lease, nil if it is not held any more.
local function open_held(token)
  local problem = refuse(false)
  if problem then
    return problem
  end
  local wrong, lease = held_lease(KEYS[6], token)
  local current = wrong or current_token()
  if type(current) == 'table' then
    return current
  end
  return nil, current, lease
end
