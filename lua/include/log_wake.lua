-- Turns: how the blocked members of a log's group are woken, who has waited longest first.
--   line     a sorted set: member that waits, or was woken and has not looked yet -> until when (ms) it
--            is believed to be there, unless it says so again
--   turns    a list: what wakes, one number a turn; BLPOP gives them to who has been blocked longest
--   granted  a sorted set: turn -> when (ms) it was given; until it is used, or too old, newcomers leave
--            an entry for it
-- Whoever waits has been in the line since the very look that found nothing. So whatever comes after
-- that look finds him there, and BLPOP finds a turn that was given before it.
--@include log
-- Whoever was woken and does not look for so long withholds nothing any more.
local TURN_MS = 1000

-- Takes back turns that nobody has used in time. Returns how many are still given.
local function live_turns(turns, granted, at)
  redis.call('ZREMRANGEBYSCORE', granted, '-inf', whole(at - TURN_MS))
  local live = redis.call('ZCARD', granted)
  if live == 0 then
    redis.call('DEL', turns)
  else
    -- Those that nobody was blocked for are the last ones; what is before them would wake for nothing.
    redis.call('LTRIM', turns, -live, -1)
  end
  return live
end

-- Wakes as many of those who wait as there are entries that are nobody's turn yet.
-- next and first: of the log, as they are now; due: how many entries are to be handed out again.
-- Never an error: what is foreign is left to the group's own calls.
local function wake(state, line, turns, granted, at, next, first, due)
  local waiting = redis.pcall('ZCARD', line)
  if is_error(waiting) or waiting == 0 then
    return
  end
  local offset = redis.pcall('HGET', state, 'offset')
  if is_error(offset) or not offset or is_error(redis.pcall('ZCARD', granted)) or is_error(redis.pcall('LLEN', turns)) then
    return
  end
  local available = math.max(0, next - math.max(offset, first)) + due
  if available < 1 then
    return
  end
  redis.call('ZREMRANGEBYSCORE', line, '-inf', whole(at))
  waiting = redis.call('ZCARD', line)
  local new = math.min(waiting, available) - live_turns(turns, granted, at)
  if new < 1 then
    return
  end
  local last = redis.call('HINCRBY', state, 'turn', new)
  local numbers, given = {}, {}
  for turn = last - new + 1, last do
    numbers[#numbers + 1] = whole(turn)
    given[#given + 1], given[#given + 2] = whole(at), whole(turn)
    if #numbers == 1000 or turn == last then
      redis.call('ZADD', granted, unpack(given))
      redis.call('RPUSH', turns, unpack(numbers))
      numbers, given = {}, {}
    end
  end
end
