-- Create the account of `innoscope agent` with the minimum privileges: it can read the server's counters, settings,
-- InnoDB monitor and replication status, but no user tables. For MySQL 5.5 or newer and MariaDB. To set your own password:
--
--     sed "s|change me|$(openssl rand -base64 18)|" /usr/share/innoscope/account.sql > account.sql
--     mysql < account.sql
--
-- Write the same password to /etc/innoscope/my.cnf (root:innoscope, mode 0640), and set sql.defaults_file to this file:
--
--     [client]
--     user = innoscope
--     password = …
--
-- To authenticate by operating-system user without a password (no option file is needed):
--     MySQL     CREATE USER innoscope@localhost IDENTIFIED WITH auth_socket;
--     MariaDB   CREATE USER innoscope@localhost IDENTIFIED VIA unix_socket;

-- Connections from this host only. The agent uses two connections, and a third one while it captures an incident; two more
-- are for commands that use this account.
CREATE USER innoscope@localhost IDENTIFIED BY 'change me'
  /*!50706 WITH MAX_USER_CONNECTIONS 5 */ /*M!100201 WITH MAX_USER_CONNECTIONS 5 */;

-- Required by information_schema.INNODB_METRICS and SHOW ENGINE INNODB STATUS, and to see all threads.
GRANT PROCESS ON *.* TO innoscope@localhost;

-- Required by SHOW SLAVE STATUS, which shows whether a replica has stopped, and why. On MySQL and on MariaDB before 10.5.2, the
-- privilege gives no access to user data: it also permits SHOW MASTER STATUS and SHOW BINARY LOGS (names and sizes of the files).
GRANT REPLICATION CLIENT ON *.* TO innoscope@localhost;
-- On MariaDB 10.5.2 and newer, the privilege would permit SHOW BINLOG EVENTS, which shows changed data, but not SHOW SLAVE
-- STATUS. The latter needs SLAVE MONITOR (10.5.9 and newer), which also permits SHOW RELAYLOG EVENTS. If a replica's account must
-- not read its relay log, remove the line with SLAVE MONITOR: the findings about replication then report an unknown state.
/*M!100502 REVOKE REPLICATION CLIENT ON *.* FROM innoscope@localhost */;
/*M!100509 GRANT SLAVE MONITOR ON *.* TO innoscope@localhost */;

-- Required to name the holders of metadata locks and row locks, and the connection of each thread. MySQL 5.7 and MariaDB
-- record metadata locks only if wait/lock/metadata/sql/mdl is enabled (servers.md).
/*!50703 GRANT SELECT ON performance_schema.metadata_locks TO innoscope@localhost */;
/*!50703 GRANT SELECT ON performance_schema.threads TO innoscope@localhost */;
/*M!100502 GRANT SELECT ON performance_schema.metadata_locks TO innoscope@localhost */;
/*M!100502 GRANT SELECT ON performance_schema.threads TO innoscope@localhost */;
/*!80001 GRANT SELECT ON performance_schema.data_lock_waits TO innoscope@localhost */;
-- Required to see how far a replica is behind, and the errors that stopped it.
/*!80001 GRANT SELECT ON performance_schema.replication_applier_configuration TO innoscope@localhost */;
/*!50703 GRANT SELECT ON performance_schema.replication_applier_status_by_worker TO innoscope@localhost */;
/*!50703 GRANT SELECT ON performance_schema.replication_applier_status_by_coordinator TO innoscope@localhost */;
/*!50703 GRANT SELECT ON performance_schema.replication_connection_status TO innoscope@localhost */;
-- Required to name the table that an applier is changing.
/*!50703 GRANT SELECT ON performance_schema.table_handles TO innoscope@localhost */;
-- Required to name the member that a group is waiting for (Group Replication).
/*!80001 GRANT SELECT ON performance_schema.replication_group_members TO innoscope@localhost */;
/*!80001 GRANT SELECT ON performance_schema.replication_group_member_stats TO innoscope@localhost */;

-- To remove the account:  DROP USER innoscope@localhost;
