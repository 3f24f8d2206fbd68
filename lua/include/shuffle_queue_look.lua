-- What scripts that only look at a shuffle queue begin with: layout_error(), and foreign_meta(),
-- which returns an error reply if the queue is of another layout, and else nothing.
local function layout_error(key, why)
  return redis.error_reply('WSLAYOUT the key ' .. key .. ' ' .. why)
end

local function foreign_meta(meta)
  local mark = redis.pcall('HGET', meta, 'mark')
  if type(mark) == 'table' then
    return layout_error(meta, 'does not hold what is known of a shuffle queue')
  end
  if mark and mark ~= '1' then
    return layout_error(meta, 'says ' .. mark .. ' where 1 was expected')
  end
end
