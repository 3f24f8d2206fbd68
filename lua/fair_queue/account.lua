--@library
-- The accounts of a fair queue: a record for each, the rules that hold for it, and whether it has a turn.
-- This is start-time fair queueing (Goyal, Vin and Cheng, 1996) over accounts. An account's tag is the
-- virtual time at which its next turn begins, in microseconds of work divided by its weight.
--@include queue

-- Where an account stands: nowhere (nothing waits, or its cap is reached), among the ready, among the
-- limited (by its rate, or paused), among the idle.
local NOWHERE, IS_READY, IS_LIMITED, IS_IDLE = 0, 1, 2, 3

-- The score of a paused account among the limited.
local NEVER = '+inf'

-- How much work a message is taken for, in microseconds, before its account has done any.
local FIRST_ESTIMATE = 1000000

-- Beyond it a tag is none. Many workers at a small weight reach 2^53 within months, so tags are not whole numbers of
-- Lua's: a tag of that size is exact to some microseconds, and one of 10^18 to a tenth of a millisecond.
local MOST_TAG = 1e100

-- A record is sixteen numbers, then its epoch and its rule. `struct` makes and reads it in a tenth of the time that a
-- text takes; a server without it (fakeredis) has texts.
local FORM, FORM_SIZE = '>dI5I4I4I4BI6I7I6I6I6I6I6I6I2B', 78
local TEXT = '^' .. string.rep('(%d+) ', 16) .. '(.*)$'

-- Makes a record of its text, or nil, and sets `unbelieved`.
local function record_of(key, account, text)
  local tag, estimate, waiting, flying, delayed, place, version, allowed, head, tail, head1, tail1, first, last, credit, size
  local at = FORM_SIZE + 1
  if struct and #text >= FORM_SIZE then
    tag, estimate, waiting, flying, delayed, place, version, allowed, head, tail, head1, tail1, first, last, credit, size =
      struct.unpack(FORM, text)
  elseif not struct then
    local rest
    tag, estimate, waiting, flying, delayed, place, version, allowed, head, tail, head1, tail1, first, last, credit, size, rest =
      string.match(text, TEXT)
    text, at, place = rest, 1, tonumber(place)
    tag, tail, tail1, last = tonumber(tag), tonumber(tail), tonumber(tail1), tonumber(last)
  end
  if not size or place > 3 or not (tag >= 0 and tag < MOST_TAG) or #text < at - 1 + size or size == 0 then
    --@include stored
    disbelieve(key, 'the account ' .. account, 'a text of another form', 'a record of an account')
    return nil
  end
  return {
    tag = tag, estimate = estimate + 0, waiting = waiting + 0, flying = flying + 0, delayed = delayed + 0,
    place = place, version = version + 0, allowed = allowed + 0, head = head + 0, tail = tail,
    head1 = head1 + 0, tail1 = tail1, first = first + 0, last = last, credit = credit + 0,
    epoch = string.sub(text, at, at + size - 1), rule = string.sub(text, at + size),
  }
end

-- The record of an account; nil if it has none.
local function account_of(keys, account)
  local text = redis.call('HGET', keys[ACCOUNTS], account)
  return text and record_of(keys[ACCOUNTS], account, text)
end

-- The number as digits and small letters, so that ids are short.
local function base36(number)
  local digits = ''
  repeat
    local digit = number % 36
    digits = string.sub('0123456789abcdefghijklmnopqrstuvwxyz', digit + 1, digit + 1) .. digits
    number = math.floor(number / 36)
  until number == 0
  return digits
end

-- A number that no record and no message of this queue had before, as message ids carry it: in microseconds, so that
-- no flood of delayed messages lets it run ahead of the clock, which alone knows it if the queue was deleted.
local function new_epoch(keys, at)
  local last = redis.call('HGET', keys[META], 'epochs')
  local epoch = math.max(at * 1000, stored(keys[META], 'epochs', last, 0, MOST_STORED - 1, 0) + 1)
  redis.call('HSET', keys[META], 'epochs', whole(epoch))
  return base36(epoch)
end

-- A new record. By its epoch no id is used again after an idle account was collected.
local function new_account(keys, facts, at)
  return {
    epoch = new_epoch(keys, at), tag = facts.now, estimate = 0, waiting = 0, flying = 0, delayed = 0,
    place = NOWHERE, version = 0, allowed = 0, head = 0, tail = 0, head1 = 0, tail1 = 0, first = 0,
    last = 0, credit = 0, rule = '',
  }
end

-- The record of an account that has messages; a new one if it was lost, nil if what is there cannot be believed.
local function account_of_some(keys, facts, account, at)
  local a = account_of(keys, account)
  if a or unbelieved then
    return a
  end
  --@include account
  return new_account(keys, facts, at)
end

local function save_account(keys, account, a)
  local text
  if struct then
    text = struct.pack(
      FORM, a.tag, a.estimate, a.waiting, a.flying, a.delayed, a.place, a.version, a.allowed, a.head, a.tail,
      a.head1, a.tail1, a.first, a.last, a.credit, #a.epoch
    )
  else
    text = string.format(
      string.rep('%.0f ', 16), a.tag, a.estimate, a.waiting, a.flying, a.delayed, a.place, a.version, a.allowed,
      a.head, a.tail, a.head1, a.tail1, a.first, a.last, a.credit, #a.epoch
    )
  end
  redis.call('HSET', keys[ACCOUNTS], account, text .. a.epoch .. a.rule)
end

-- Whether a name is one of a glob of `*` and `?`. Each part between two stars stands at the first place where it can,
-- so that no glob takes long; a pattern of Lua with many stars would try each division of the name.
local function is_of_glob(name, text)
  local function plain(part)
    return (string.gsub(string.gsub(string.gsub(part, '[%^%$%(%)%%%.%[%]%+%-]', '%%%0'), '%?', '.'), '%z', '%%z'))
  end
  local first, rest = string.match(text, '^([^*]*)(.*)$')
  if rest == '' then
    return string.find(name, '^' .. plain(first) .. '$') ~= nil
  end
  local middle, last = string.match(rest, '^(.*%*)([^*]*)$')
  if #name < #first + #last or not string.find(name, '^' .. plain(first)) or not string.find(string.sub(name, #name - #last + 1), '^' .. plain(last) .. '$') then
    return false
  end
  local at, limit = #first + 1, #name - #last
  for part in string.gmatch(middle, '[^*]+') do
    local from, to = string.find(name, plain(part), at)
    if not from or to > limit then
      return false
    end
    at = to + 1
  end
  return true
end

-- The patterns of rules, the most particular first, of their text in meta.
local function patterns_in(text)
  local found, at = {}, 1
  while at <= #text do
    local _, last, size = string.find(text, '^(%d+):', at)
    if not last then
      break
    end
    found[#found + 1] = string.sub(text, last + 1, last + size)
    at = last + size + 1
  end
  return found
end

-- The most particular pattern that an account matches, '' for none. Its own rule needs no search.
local function rule_of(keys, facts, account)
  facts.patterns = facts.patterns or patterns_in(redis.call('HGET', keys[META], 'patterns') or '')
  for _, pattern in ipairs(facts.patterns) do
    if is_of_glob(account, pattern) then
      return pattern
    end
  end
  return ''
end

-- A rule, as its text in `rules` says: weight in thousandths, cap, us between two messages, burst, estimate
-- in us, most waiting messages, share of the lower priority in thousandths, 1 if paused; `-` if it does not say.
local RULE = '^([%d-]+) ([%d-]+) ([%d-]+) ([%d-]+) ([%d-]+) ([%d-]+) ([%d-]+) ([%d-]+)$'

-- The settings that the rules say for an account.
local function ruled_settings(keys, facts, account, a)
  local is_changed = a.version ~= facts.rules
  if is_changed then
    a.rule, a.version = rule_of(keys, facts, account), facts.rules
  end
  -- What the account's own rule does not say, its pattern says, and then the default of all.
  local names = { account, a.rule, '*' }
  local found = redis.call('HMGET', keys[RULES], unpack(names))
  local said, by = {}, ''
  for i = 1, 3 do
    local parts = found[i] and { string.match(found[i], RULE) } or {}
    for j = 1, 8 do
      said[j] = said[j] or tonumber(parts[j])
    end
    by = by == '' and found[i] and names[i] or by
    said[9] = said[9] or said[8] and names[i]
  end
  local weight = math.max(1, said[1] or 1000)
  if is_changed and a.tag then
    -- What it owes was reckoned by another weight.
    local charge = a.estimate > 0 and a.estimate or said[5] or FIRST_ESTIMATE
    a.tag = math.min(a.tag, facts.now + math.floor((a.flying + 1) * charge * 1000 / weight))
  end
  return {
    weight = weight, cap = said[2], period = said[3], burst = said[4] or 1,
    estimate = said[5], most = said[6], lower = said[7] or 100, is_paused = said[8] == 1,
    paused_by = said[8] == 1 and said[9] or '', rule = by,
  }
end

local WITHOUT_RULES = { weight = 1000, burst = 1, lower = 100 }

-- The settings that hold for an account.
local function settings_of(keys, facts, account, a)
  if facts.rules == 0 then
    return WITHOUT_RULES
  end
  --@include account
  return ruled_settings(keys, facts, account, a)
end

-- Notes that something lapses, or may be served, at a moment in ms.
local function look_at(keys, facts, moment)
  if moment < facts.look then
    facts.look = moment
    redis.call('HSET', keys[META], 'look', whole(moment))
  end
end

-- Puts an account where it belongs, after its record has changed: among the ready if it has a turn, and
-- nowhere else then. One that is taken has its turn now: whoever took it out of the ready puts it back. at: ms. Returns whether the ready were none before: then sleeping readers are to be woken.
local function settle_place(keys, facts, account, a, s, at, tag_before)
  local wanted, moment = IS_READY, nil
  if a.first == a.last and a.head == a.tail and a.head1 == a.tail1 then
    -- Messages that the server has lost do not wait.
    a.waiting = 0
  end
  if a.waiting == 0 then
    -- Messages that have ended without a read have left holes, which no read need pass over.
    a.first, a.head, a.head1 = a.last, a.tail, a.tail1
    wanted = a.flying == 0 and a.delayed == 0 and IS_IDLE or NOWHERE
    moment = a.tag
  elseif s.is_paused then
    wanted, moment = IS_LIMITED, NEVER
  elseif s.cap and a.flying >= s.cap then
    wanted = NOWHERE
  elseif s.period then
    -- A slower rate that held before is over.
    a.allowed = math.min(a.allowed, at * 1000 + s.burst * s.period)
    local earliest = a.allowed - (s.burst - 1) * s.period
    if earliest > at * 1000 then
      wanted, moment = IS_LIMITED, whole(math.ceil(earliest / 1000))
    end
  end
  local wakes = false
  if a.place ~= wanted then
    if a.place == IS_READY then
      if not a.is_taken then
        redis.call('ZREM', keys[READY], account)
      end
    elseif a.place == IS_LIMITED then
      redis.call('ZREM', keys[LIMITED], account)
    elseif a.place == IS_IDLE then
      redis.call('ZREM', keys[IDLE], account)
    end
  end
  if wanted == IS_READY then
    if a.place ~= IS_READY then
      -- It has no credit for the time in which it had no turn.
      a.tag = math.max(a.tag, facts.now)
      wakes = redis.call('ZCARD', keys[READY]) == 0
    end
    if not a.is_taken and (a.place ~= IS_READY or a.tag ~= tag_before) then
      redis.call('ZADD', keys[READY], a.tag, account)
    end
  elseif wanted == IS_LIMITED then
    if moment ~= NEVER then
      look_at(keys, facts, tonumber(moment))
      -- Sleeping readers learn until when they may sleep, if that is sooner than they know.
      local before = a.place == IS_LIMITED and redis.call('ZSCORE', keys[LIMITED], account)
      wakes = not (before and tonumber(before) <= tonumber(moment)) and redis.call('ZCARD', keys[READY]) == 0
    end
    redis.call('ZADD', keys[LIMITED], moment, account)
  elseif wanted == IS_IDLE then
    redis.call('ZADD', keys[IDLE], a.tag, account)
  end
  a.place = wanted
  return wakes
end

-- The virtual time of a queue that has lost it: the least tag, or, where no account is ready, the greatest of some. At 0,
-- newcomers would be served alone for long.
local function time_again(keys)
  local least = redis.call('ZRANGE', keys[READY], 0, 0, 'WITHSCORES')[2]
  if least then
    return least
  end
  local greatest, before = 0, unbelieved
  local page = redis.call('HSCAN', keys[ACCOUNTS], 0, 'COUNT', 32)[2]
  for i = 1, #page, 2 do
    local a = record_of(keys[ACCOUNTS], page[i], page[i + 1])
    greatest = math.max(greatest, a and a.tag or 0)
  end
  unbelieved = before
  return whole(greatest)
end

-- A number of meta, quickly where it is one. absent: what none stands for.
local function fact(keys, field, text, absent)
  local number = text and tonumber(text) or not text and absent
  if number and number >= 0 and number < MOST_STORED and number % 1 == 0 then
    return number
  end
  --@include stored
  return stored(keys[META], field, text, 0, MOST_STORED - 1)
end

-- The virtual time, of its text in meta.
local function tag_of(keys, text)
  local tag = tonumber(text)
  if tag and tag >= 0 and tag < MOST_TAG then
    return tag
  end
  --@include stored
  disbelieve(keys[META], 'now', text, 'a virtual time')
  return 0
end

-- The facts that the account functions need. found: the reply about meta; first: the place before `now`, `delivery`,
-- `rules` and `look` in it.
local function facts_of(keys, found, first, at)
  local text = found[first + 1]
  if not text then
    --@include account
    text = time_again(keys)
  end
  return {
    now = tag_of(keys, text),
    -- No number of a delivery is used again, even if meta was lost.
    delivery = fact(keys, 'delivery', found[first + 2], at * 100),
    rules = fact(keys, 'rules', found[first + 3], 0),
    -- Until then nothing lapses, and nothing that is delayed or limited may be served.
    look = fact(keys, 'look', found[first + 4], 0),
  }
end
