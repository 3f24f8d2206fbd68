# Lets redis-ick's public calls run on workstealing's scripts instead of the gem's own Lua.
#
# Required before the gem's tests. WORKSTEALING_SCRIPTS names a JSON file: script's name -> its text. The
# arguments are checked, and replies are read, by the gem; only which script runs is decided here.

require 'json'
require 'redis/ick'

module OnWorkstealing
  SCRIPTS = JSON.parse(File.read(ENV.fetch('WORKSTEALING_SCRIPTS')))
  PIECE = 1000
  AS_IT_IS = ->(reply) { reply }

  @runs = Hash.new(0)
  class << self
    attr_reader :runs
  end

  def _eval(lua, ick_key, *args)
    beside = %w[pset cset held attempts seen dead].map { |part| "#{ick_key}/ick/{#{ick_key}}/#{part}" }
    keys = [ick_key, *beside]
    @read = AS_IT_IS
    case lua
    when Redis::Ick::LUA_ICKADD then add(keys, args)
    when Redis::Ick::LUA_ICKEXCHANGE then exchange(keys, *args)
    when Redis::Ick::LUA_ICKSTATS then stats(keys)
    when Redis::Ick::LUA_ICKDEL then run('ick/delete', keys, ['DEL'])
    else raise "a call of redis-ick's that has no script of ours"
    end
  end

  def _postprocess(raw, callback)
    read = @read
    super(raw, ->(reply) { callback.call(read.call(reply)) })
  end

  private

  def run(name, keys, argv)
    OnWorkstealing.runs[name] += 1
    redis.eval(SCRIPTS.fetch(name), keys, argv)
  end

  def add(keys, pairs)
    replies = pairs.each_slice(2 * PIECE).map { |some| run('ick/add', keys.first(3), some) }
    replies = [run('ick/add', keys.first(3), [])] if replies.empty?
    replies.one? ? replies.first : replies.transpose.map(&:sum)
  end

  def exchange(keys, size, backwash, *members)
    @tokens ||= Hash.new('')
    key = keys.first
    keys = keys.first(5)
    *earlier, last = members.flatten.each_slice(PIECE).to_a
    committed = earlier.sum { |some| run('ick/ack', keys, [@tokens[key], *some]) }
    flag = backwash ? 1 : 0
    reply = run('ick/exchange', keys, [size, flag, @tokens[key], *last])
    @read = lambda do |(count, token, list, left)|
      @tokens[key] = token unless token.empty?
      until left.empty?
        argv = [token, size, left, list.size / 2]
        more, left = run('ick/reserve_on', keys, argv)
        list += more
      end
      [count + committed, *list]
    end
    reply
  end

  def stats(keys)
    reply = run('ick/stats', keys.values_at(0, 1, 2, 6), [])
    @read = lambda do |found|
      found && described(keys, found)
    end
    reply
  end

  def described(keys, found)
    version, psize, pmin, pmax, csize, cmin, cmax = found
    figures = {
      'pset_min' => pmin, 'pset_max' => pmax, 'cset_min' => cmin, 'cset_max' => cmax,
      'total_min' => [pmin, cmin].reject(&:empty?).min_by { |score| Redis::Ick._floatify(score) } || '',
      'total_max' => [pmax, cmax].reject(&:empty?).max_by { |score| Redis::Ick._floatify(score) } || ''
    }.reject { |_, score| score.empty? }
    {
      'key' => keys[0], 'pset_key' => keys[1], 'cset_key' => keys[2], 'ver' => version,
      'cset_size' => csize, 'pset_size' => psize, 'total_size' => csize + psize, **figures
    }.to_a.flatten
  end
end

Redis::Ick.prepend(OnWorkstealing)
at_exit do
  # Runs after the tests: Minitest's own comes before whatever was said earlier.
  puts "scripts of workstealing: #{JSON.generate(OnWorkstealing.runs)}"
end
