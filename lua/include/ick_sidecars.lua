-- What stands beside the three keys of redis-ick, for the scripts that touch all of it.
--   KEYS[4] held, a string; KEYS[5] attempts, KEYS[6] seen, KEYS[7] dead, hashes: see the catalogue
--@include ick
-- Refuses whatever is no Ick, as refuse(false), and whatever foreign stands at a key beside it.
local function refuse_all()
  local problem = refuse(false)
  if problem then
    return problem
  end
  if type(redis.pcall('STRLEN', KEYS[4])) == 'table' then
    return layout_error(KEYS[4], 'does not hold the reservation of an Ick')
  end
  for i = 5, 7 do
    if type(redis.pcall('HLEN', KEYS[i])) == 'table' then
      return layout_error(KEYS[i], 'does not hold the attempts or the dead members of an Ick')
    end
  end
  return nil
end
