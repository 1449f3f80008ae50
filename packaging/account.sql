-- The account of `innoscope agent`, with the least that it needs: counters, settings and the InnoDB monitor of the
-- server, no table of anybody's. MySQL from 5.5 and MariaDB. With a password of your own:
--
--     sed "s|change me|$(openssl rand -base64 18)|" /usr/share/innoscope/account.sql > account.sql
--     mysql < account.sql
--
-- The same password goes into /etc/innoscope/my.cnf (root:innoscope, mode 0640), which sql.defaults_file names:
--
--     [client]
--     user = innoscope
--     password = …
--
-- Without a password, known by the system's user (then no option file is needed):
--     MySQL     CREATE USER innoscope@localhost IDENTIFIED WITH auth_socket;
--     MariaDB   CREATE USER innoscope@localhost IDENTIFIED VIA unix_socket;

-- From this host only. One connection is what the agent has; two more for a person who looks with it.
CREATE USER innoscope@localhost IDENTIFIED BY 'change me'
  /*!50706 WITH MAX_USER_CONNECTIONS 3 */ /*M!100201 WITH MAX_USER_CONNECTIONS 3 */;

-- information_schema.INNODB_METRICS and SHOW ENGINE INNODB STATUS ask for it, and to see all threads does.
GRANT PROCESS ON *.* TO innoscope@localhost;

-- To be taken back:  DROP USER innoscope@localhost;
