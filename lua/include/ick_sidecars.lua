-- What stands beside the three keys of redis-ick, for the scripts that touch all of it.
--   KEYS[4] held, a string; KEYS[5] attempts, KEYS[6] seen, KEYS[7] dead, hashes: see the catalogue
--@include ick
--@include refuse_key

-- Refuses whatever is no Ick, as refuse(false), and whatever foreign stands at a key beside it.
local function refuse_all()
  local problem = refuse(false) or refuse_key('STRLEN', KEYS[4], 'the reservation of an Ick')
  for i = 5, 7 do
    problem = problem or refuse_key('HLEN', KEYS[i], 'the attempts or the dead members of an Ick')
  end
  return problem
end
