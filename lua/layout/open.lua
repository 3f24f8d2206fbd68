-- Reads the layout of a namespace, and writes it down if there is none yet.
-- KEYS: the layout, a hash. ARGV: the fields and values of a new layout; none if it is only to be read.
-- Returns field, value, ... of the layout that holds. Errors: WSLAYOUT for a foreign key.
--@include layout
return open_layout(ARGV)
