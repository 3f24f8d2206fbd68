-- The dead members of an Ick: KEYS[4], a hash: member -> history, JSON that begins with the score.
--@include ick
local dead = KEYS[4]

local function refuse_grave(create)
  if type(redis.pcall('HLEN', dead)) == 'table' then
    return layout_error(dead, 'does not hold the dead members of an Ick')
  end
  return (refuse(create))
end
