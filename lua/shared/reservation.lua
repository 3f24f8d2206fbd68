--@library
-- The reservation that holds in an Ick: who reserved last, when, and what.
--   held: a string: token, a space, time, and a list of separator, member, separator, score;
--           the token (see token) is greater than every one before, the time is the server's, in
--           milliseconds, and a milestone stands behind each 8 entries. One string for the whole
--           batch, put together by a few calls: an entry for each member would double the cost of
--           a reservation. Of what a reaper has returned the entries are masked (ick/listed).
--   attempts: a hash: how often a reaper has returned a member; an acknowledgement ends that
--@include ick
--@include clock
local has_attempts, held_head

-- head_of(text): the head of a reservation, its token and its time in ms, of the text that held begins
-- with (MOST_HEAD bytes of it); '' and '' where nothing is held; nil for what is none.
local MOST_HEAD = 40
local function head_of(text)
  if text == '' then
    return '', ''
  end
  local head, token, time = string.match(text, '^((%d+) (%d+))')
  if head and #token >= 16 and #time >= 13 and (#text == #head or string.byte(text, #head + 1) == 10) then
    return head, token, tonumber(time)
  end
end

-- separator(head): what stands between the parts of a reservation's list, made from the end of its
-- time, which nobody knows beforehand. A member that contains it all the same is taken for one that
-- is not listed, which is as safe.
local function separator(head)
  return '\n' .. string.sub(head, -6) .. '\n'
end

-- milestone(head): what stands behind the last score of each 8 entries of a list, so that a reader
-- who comes to the middle of it knows a member from a score. It counts as a part of that score, for
-- whoever does not know it.
local MILE = 8
local function milestone(head)
  return '\n' .. string.sub(head, -6) .. ':'
end

-- The token of the reservation that holds, or '' if there never was one; an error reply for a
-- foreign key.
local function current_token(held, attempts)
  local text, token = redis.pcall('GETRANGE', held, 0, MOST_HEAD - 1), nil
  if type(text) == 'string' then
    held_head, token = head_of(text)
  end
  if type(text) == 'table' then
    return refusal(text, held, 'does not hold the reservation of an Ick')
  end
  if not token then
    return layout_error(held, 'does not hold the reservation of an Ick')
  end
  has_attempts = redis.pcall('HLEN', attempts)
  if type(has_attempts) == 'table' then
    return refusal(has_attempts, attempts, 'does not hold the attempts of an Ick')
  end
  return token
end

-- The text of a list of member, score, ... of a reservation, behind its head or, in the pieces after the
-- first, behind ''. One concat makes it; the list is used up.
local function list_text(head, begin, list)
  if #list == 0 then
    return begin
  end
  local between, mile = separator(head), milestone(head)
  for i = 2 * MILE, #list, 2 * MILE do
    list[i] = list[i] .. mile
  end
  list[1] = begin .. between .. list[1]
  return table.concat(list, between)
end

-- Writes a new reservation of a list of member, score, ...; returns its token, and the text that is held.
local function hold_list(held, previous, list)
  local clock = server_time()
  local token = next_token(previous, clock)
  local head = string.format('%s %.0f%03d', token, clock[1], math.floor(clock[2] / 1000))
  local text = list_text(head, head, list)
  redis.call('SET', held, text)
  return token, text
end

-- Acknowledges members: removes them from the consumer set if the caller's token is the one that holds.
-- Returns how many were removed.
local function ack(cset, attempts, args, current, token, first)
  if current ~= '' and current ~= token then
    return 0
  end
  local acked = 0
  while first <= #args do
    local last = math.min(first + 3999, #args)
    acked = acked + redis.call('ZREM', cset, unpack(args, first, last))
    if has_attempts > 0 then
      redis.call('HDEL', attempts, unpack(args, first, last))
    end
    first = last + 1
  end
  return acked
end

-- Moves the first n members of one set to another; the lower score wins.
local function fold(from, to, n)
  while n > 0 do
    local list = redis.call('ZRANGE', from, 0, math.min(n, 2000) - 1, 'WITHSCORES')
    if #list == 0 then
      return
    end
    for i = 1, #list, 2 do
      list[i], list[i + 1] = list[i + 1], list[i]
    end
    redis.call('ZADD', to, 'LT', unpack(list))
    redis.call('ZREMRANGEBYRANK', from, 0, #list / 2 - 1)
    n = n - #list / 2
  end
end

-- No script puts back, tops up or returns more members than this; a reservation of more is made by
-- several, the first of which writes the token and the others only go on while it holds. A multiple
-- of MILE, so that the milestones stand where they would in one list.
local PIECE = 1000
local MOST = 9007199254740991 -- beyond it a number of Lua makes no integer of the server's

-- Goes on by a piece with a reservation of n members: 'back' puts back what is reserved, 'top' tops up
-- the consumer set, 'page' returns its members from rank `first` on; each begins when the one
-- before has ended. waits: how many members wait for their rest (count_waiting). Returns member,
-- score, ..., and what is left to be done, '' for nothing.
local function advance(pset, cset, n, todo, first, waits, waiting, terms)
  n = math.min(n, MOST)
  if todo == 'back' then
    fold(cset, pset, PIECE)
    if redis.call('EXISTS', cset) == 1 then
      return {}, 'back'
    end
    todo = 'top'
  end
  if n == 0 then
    return {}, ''
  end
  local size = redis.call('ZCARD', cset)
  if todo == 'top' then
    local room, is_more = PIECE, false
    if waits > 0 then
      --@include waiting
      is_more = wake(pset, waiting, terms, n, PIECE)
    end
    if size == 0 then
      local last = math.min(n, room) - 1
      size = redis.call('ZRANGESTORE', cset, pset, 0, last)
      redis.call('ZREMRANGEBYRANK', pset, 0, last)
      room = room - size
    end
    -- A member that is in both sets takes no place, so that it may need another turn.
    while room > 0 and size < n and redis.call('EXISTS', pset) == 1 do
      local some = math.min(n - size, room)
      fold(pset, cset, some)
      room = room - some
      size = redis.call('ZCARD', cset)
    end
    if size < n and (is_more or redis.call('EXISTS', pset) == 1) then
      return {}, 'top'
    end
  end
  local last = math.min(n, first + PIECE)
  local is_whole = last == n or size <= last
  return redis.call('ZRANGE', cset, first, last - 1, 'WITHSCORES'), is_whole and '' or 'page'
end

-- Makes a new reservation of n members, or its first piece. Returns the token, the text that is held, how
-- many members it lists, and what is left to be done. The text is the reply, too: a list of 2,000
-- parts takes the server and the caller longer.
local function reserve(pset, cset, held, current, n, backwash, waits, waiting, terms)
  local list, todo = advance(pset, cset, n, backwash and 'back' or 'top', 0, waits, waiting, terms)
  local token, text = hold_list(held, current, list)
  return token, text, #list / 2, todo
end

-- Goes on by a piece with the reservation that holds, and lists its members behind the others. Returns the
-- text of this piece, how many members it lists, and what is left to be done.
local function reserve_on(pset, cset, held, n, todo, first, waits, waiting, terms)
  -- A server that is out of memory lets a script go on that has begun by what can only delete.
  redis.call('ZREMRANGEBYRANK', cset, 1, 0)
  local list, left = advance(pset, cset, n, todo, first, waits, waiting, terms)
  local text = list_text(held_head, '', list)
  if #list > 0 then
    redis.call('APPEND', held, text)
  end
  return text, #list / 2, left
end

-- Ends a reservation when all of it is acknowledged. current: its token; acked: how many members
-- were removed. A client without tokens may reserve the same members from then on.
local function end_if_done(cset, held, current, acked)
  if acked > 0 and current ~= '' and redis.call('EXISTS', cset) == 0 then
    redis.call('SET', held, held_head)
  end
end
