-- One client: repeat the list of statements without pausing. Successive clients start with successive
-- statements, so that two clients of a table scan read different tables.

sysbench.cmdline.options = {
   statements = {"Statements, separated by semicolons", ""},
   rows = {"$R in a statement is a random number from 1 to this", 1},
   reconnect = {"Use a new connection for each statement", false},
}

function thread_init()
   connection = sysbench.sql.driver():connect()
   list = {}
   for statement in string.gmatch(sysbench.opt.statements, "[^;]+") do
      list[#list + 1] = statement
   end
   turn = sysbench.tid % #list
   varied = string.find(sysbench.opt.statements, "$R", 1, true) ~= nil
end

function event()
   if sysbench.opt.reconnect then
      connection:disconnect()
      connection = sysbench.sql.driver():connect()
   end
   local statement = list[turn + 1]
   turn = (turn + 1) % #list
   if varied then
      statement = string.gsub(statement, "%$R", sysbench.rand.uniform(1, sysbench.opt.rows))
   end
   local result = connection:query(statement)
   if result ~= nil then
      result:free()
   end
end

function thread_done()
   connection:disconnect()
end
