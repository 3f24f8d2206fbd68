--@library
-- The part that all scripts on a sub-set of a tracked set share.
--   ids: the ids, a set
--   state: a hash: mark -> the layout's, generation -> a number that grows with each
--           call that has tracked or untracked ids of this sub-set
--   expected: the mark that the caller was written for
--@include bounded
--@include layout

-- Refuses a foreign layout and wrong types before anything is written. Returns an error reply, or nil.
local function refuse(ids, state, expected)
  local found = redis.pcall('HGET', state, 'mark')
  local problem = refuse_mark(state, found, expected, 'the state of a tracked set')
  if problem then
    return problem
  end
  local size = redis.pcall('SCARD', ids)
  if type(size) == 'table' then
    return refusal(size, ids, 'does not hold the ids of a tracked set')
  end
  if not found then
    local reply = redis.pcall('HSET', state, 'mark', expected)
    if type(reply) == 'table' then
      return reply
    end
  end
end

-- Raises the generation, which SADD of a present member would leave unseen. Returns an error or nil.
local function bump(state)
  local step = 1
  if redis.call('HEXISTS', state, 'generation') == 0 then
    -- From the time on: if the state was lost, nobody must take a new generation for one of before.
    local clock = redis.call('TIME')
    step = string.format('%d%06d', clock[1], clock[2])
  end
  local reply = redis.pcall('HINCRBY', state, 'generation', step)
  if type(reply) == 'table' then
    -- A number that is none, or too large to grow; a refusal of another kind stands as it is.
    for _, foreign in ipairs({ 'not an integer', 'overflow' }) do
      if string.find(tostring(reply.err), foreign, 1, true) then
        return layout_error(state, 'holds no number as its generation: remove that field')
      end
    end
    return reply
  end
end
