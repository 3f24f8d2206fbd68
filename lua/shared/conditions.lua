--@library
-- The conditions NX, XX, GT and LT of EXPIRE and its siblings, as Redis takes them from 7.0 on.

-- Reads the conditions from one argument on. Returns a set of words, or nil and an error reply.
local function read_conditions(args, first)
  local is = {}
  for i = first, #args do
    local word = string.upper(args[i])
    if word ~= 'NX' and word ~= 'XX' and word ~= 'GT' and word ~= 'LT' then
      return nil, redis.error_reply('ERR Unsupported option ' .. args[i])
    end
    is[word] = true
  end
  if is.NX and (is.XX or is.GT or is.LT) then
    return nil, redis.error_reply(
      'ERR NX and XX, GT or LT options at the same time are not compatible'
    )
  end
  if is.GT and is.LT then
    return nil, redis.error_reply('ERR GT and LT options at the same time are not compatible')
  end
  return is
end

-- Whether a wanted deadline may replace the present one, nil for none.
local function is_met(is, deadline, wanted)
  return not (
    (is.NX and deadline)
    or (is.XX and not deadline)
    or (is.GT and not (deadline and wanted > deadline))
    or (is.LT and deadline and wanted >= deadline)
  )
end
