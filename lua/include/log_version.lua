-- What `mark` of a log's meta says.
local LOG_VERSION = '1'
