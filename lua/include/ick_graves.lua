-- The dead members of an Ick: KEYS[4], a hash: member -> history, JSON that begins with the score.
--@include ick
--@include refuse_key
local dead = KEYS[4]

local function refuse_grave(create)
  return refuse_key('HLEN', dead, 'the dead members of an Ick') or (refuse(create))
end
