-- end_if_done(): what becomes of a reservation when all of it is committed.
--@include ick_reservation

-- current: its token; committed: how many members were removed. A client without tokens may reserve the same members
-- from then on.
local function end_if_done(current, committed)
  if committed > 0 and current ~= '' and redis.call('EXISTS', cset) == 0 then
    redis.call('SET', held, held_head)
  end
end
