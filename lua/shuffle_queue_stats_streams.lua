-- Describes some streams of a shuffle queue as one group sees them, and goes on counting tenants.
-- KEYS: meta, the group's returned entries, its delayed ones, then the streams.
-- ARGV: the consumer that owns returned and delayed entries; then for each stream its number, the
-- group's name in it, where to go on counting ('-', or '(' and the last entry counted), and how
-- many entries to count at most. Returns for each stream { length, number of pending entries,
-- number of returned ones, the oldest waiting entry and the oldest returned one ('' without),
-- consumer and number of its pending entries ..., how many of the counted were delivered before,
-- the last one counted ('' when there is no more), '=' and tenant ('' for an entry of none), how
-- many of its entries wait, are pending, returned and delayed ... }.
--@include shuffle_queue_look
local problem = foreign_meta(KEYS[1])
if problem then
  return problem
end
local returned, delayed, keeper = KEYS[2], KEYS[3], ARGV[1]

-- Returns how many entries are pending for a group, and the last that it was given.
local function known(stream, group)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for i = 1, groups.err and 0 or #groups do
    local fields = {}
    for j = 1, #groups[i], 2 do
      fields[groups[i][j]] = groups[i][j + 1]
    end
    if fields['name'] == group then
      return fields['pending'], fields['last-delivered-id']
    end
  end
  return 0
end

-- Whether one entry's id is at most another's.
local function at_most(id, last)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  local last_ms, last_sequence = string.match(last, '^(%d+)-(%d+)$')
  ms, last_ms = tonumber(ms), tonumber(last_ms)
  return ms < last_ms or ms == last_ms and tonumber(sequence) <= tonumber(last_sequence)
end

local function tenant_of(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'ws:tenant' then
      return '=' .. fields[i + 1]
    end
  end
  return ''
end

local WAITING, PENDING, RETURNED, DELAYED = 1, 2, 3, 4

-- Returns what a delivered entry is now, or nothing if the group has acknowledged it.
local function standing(stream, group, number, id)
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not pending then
    return nil
  elseif pending[2] ~= keeper then
    return PENDING
  end
  return redis.call('ZSCORE', delayed, number .. ':' .. id) and DELAYED or RETURNED
end

local function describe(stream, number, group, cursor, most)
  local length = redis.pcall('XLEN', stream)
  if type(length) == 'table' then
    problem = layout_error(stream, 'does not hold a stream of a shuffle queue')
    return {}
  end
  local pending, last = known(stream, group)
  local consumers = pending > 0 and redis.call('XPENDING', stream, group)[4] or {}
  local flat = {}
  for i = 1, #consumers do
    flat[2 * i - 1], flat[2 * i] = consumers[i][1], consumers[i][2]
  end
  local oldest = redis.call('XRANGE', stream, last and '(' .. last or '-', '+', 'COUNT', 1)[1]
  local first = redis.call('ZRANGEBYSCORE', returned, number, number, 'LIMIT', 0, 1)[1]
  local delivered, counted, order = 0, {}, {}
  local entries = tonumber(most) > 0 and redis.call('XRANGE', stream, cursor, '+', 'COUNT', most) or {}
  for i = 1, #entries do
    local id = entries[i][1]
    local state = WAITING
    if last and at_most(id, last) then
      delivered = delivered + 1
      state = standing(stream, group, number, id)
    end
    if state then
      local tenant = tenant_of(entries[i][2])
      if not counted[tenant] then
        counted[tenant] = { 0, 0, 0, 0 }
        order[#order + 1] = tenant
      end
      counted[tenant][state] = counted[tenant][state] + 1
    end
  end
  local tenants = {}
  for i = 1, #order do
    tenants[2 * i - 1], tenants[2 * i] = order[i], counted[order[i]]
  end
  local is_more = #entries > 0 and #entries == tonumber(most)
  return {
    length,
    pending,
    redis.call('ZCOUNT', returned, number, number),
    oldest and oldest[1] or '',
    first and string.match(first, ':(.*)$') or '',
    flat,
    delivered,
    is_more and entries[#entries][1] or '',
    tenants,
  }
end

local described = {}
for i = 4, #KEYS do
  local at = 2 + 4 * (i - 4)
  described[i - 3] = describe(KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
return problem or described
