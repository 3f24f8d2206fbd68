-- Describes some streams of a shuffle queue as one group sees them, and goes on counting tenants.
-- KEYS: meta, the group's returned entries, its delayed ones, then the streams.
-- ARGV: the consumer that owns returned and delayed entries; then for each stream its number, the
-- group's name in it, where to go on counting ('-', or '(' and the last entry counted), and how
-- many entries to count at most. Returns for each stream { length, number of pending entries,
-- number of returned ones, the oldest waiting entry and the oldest returned one ('' without),
-- consumer and number of its pending entries ..., how many of the counted do not wait,
-- the last one counted ('' when there is no more), '=' and tenant ('' for an entry of none), how
-- many of its entries wait, are pending, returned and delayed ... }.
--@include upkeep
local returned, delayed, keeper = KEYS[2], KEYS[3], ARGV[1]
local problem = refuse(redis.pcall('HMGET', meta, 'mark'), true)
  or refuse_key('ZCARD', returned, 'returned entries')
  or refuse_key('ZCARD', delayed, 'delayed entries')
for i = 4, #KEYS do
  problem = problem or refuse_key('XLEN', KEYS[i], 'a stream of a shuffle queue')
end
if problem then
  return problem
end

-- Returns the tenant of an entry, and the only group that it is for, if it is not for all.
local function meant_for(fields)
  local tenant, only = '', nil
  -- The queue's own fields are the last ones.
  for i = #fields - 1, math.max(1, #fields - 7), -2 do
    if fields[i] == 'ws:tenant' then
      tenant = '=' .. fields[i + 1]
    elseif fields[i] == 'ws:group' then
      only = fields[i + 1]
    end
  end
  return tenant, only
end

local WAITING, PENDING, RETURNED, DELAYED = 1, 2, 3, 4

-- Returns the state of a delivered entry, or nothing if the group has acknowledged it.
local function standing(stream, group, number, id)
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if not pending then
    return nil
  elseif pending[2] ~= keeper then
    return PENDING
  end
  return redis.call('ZSCORE', delayed, number .. ':' .. id) and DELAYED or RETURNED
end

-- Returns how many entries of each tenant there are on from a place: how many had been delivered,
-- where to go on, and the counts.
local function count(stream, group, number, last, cursor, most)
  local delivered, counted, flat = 0, {}, {}
  local entries = most > 0 and redis.call('XRANGE', stream, cursor, '+', 'COUNT', most) or {}
  for i = 1, #entries do
    local id = entries[i][1]
    local tenant, only = meant_for(entries[i][2])
    local state = WAITING
    if last and not is_after(id, last) then
      delivered = delivered + 1
      state = standing(stream, group, number, id)
    elseif only and only ~= group then
      -- It will be passed over.
      delivered = delivered + 1
      state = nil
    end
    if state then
      local counts = counted[tenant]
      if not counts then
        counts = { 0, 0, 0, 0 }
        counted[tenant] = counts
        flat[#flat + 1] = tenant
        flat[#flat + 1] = counts
      end
      counts[state] = counts[state] + 1
    end
  end
  local is_more = #entries > 0 and #entries == most
  return delivered, is_more and entries[#entries][1] or '', flat
end

local function describe(stream, number, group, cursor, most)
  local reader = readers_of(stream)[group]
  local last = reader and reader['last-delivered-id']
  local holders, flat = reader and redis.call('XPENDING', stream, group)[4] or {}, {}
  for i = 1, #holders do
    flat[2 * i - 1], flat[2 * i] = holders[i][1], tonumber(holders[i][2])
  end
  local waiting = redis.call('XRANGE', stream, last and '(' .. last or '-', '+', 'COUNT', 1)[1]
  local back = redis.call('ZRANGEBYSCORE', returned, number, number, 'LIMIT', 0, 1)[1]
  local back_id
  if back then
    local _, id = place_of(returned, back)
    back_id = id
  end
  local delivered, on, tenants = count(stream, group, number, last, cursor, tonumber(most))
  return {
    redis.call('XLEN', stream),
    reader and reader['pending'] or 0,
    redis.call('ZCOUNT', returned, number, number),
    waiting and waiting[1] or '',
    back_id or '',
    flat,
    delivered,
    on,
    tenants,
  }
end

local described = {}
for i = 4, #KEYS do
  local at = 2 + 4 * (i - 4)
  described[i - 3] = describe(KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
return unbelieved or described
