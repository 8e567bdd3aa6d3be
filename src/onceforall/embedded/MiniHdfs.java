import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * One NameNode and one DataNode in this process, on 127.0.0.1, until it is ended: {@code MiniHdfs
 * FOLDER PORT WEB_PORT}.
 *
 * <p>FOLDER/data keeps the content. It is formatted unless FOLDER/formatted says that it was. When
 * the servers answer and take writes, FOLDER/ready holds the id of this process.
 */
public final class MiniHdfs {
    private static final int POLL_INTERVAL_MS = 20;

    private MiniHdfs() {}

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        Path formatted = folder.resolve("formatted");
        Configuration configuration = new Configuration();
        configuration.setInt("dfs.replication", 1);
        // After a kill the NameNode waits this long, once it knows enough blocks, before it takes
        // writes.
        configuration.setInt("dfs.namenode.safemode.extension", 0);
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(configuration, folder.resolve("data").toFile())
                        .numDataNodes(1)
                        .nameNodePort(Integer.parseInt(arguments[1]))
                        .nameNodeHttpPort(Integer.parseInt(arguments[2]))
                        .format(!Files.exists(formatted))
                        .build();
        cluster.waitActive();
        while (cluster.getFileSystem().setSafeMode(SafeModeAction.GET)) {
            Thread.sleep(POLL_INTERVAL_MS);
        }
        Files.writeString(formatted, "");
        Path draft = folder.resolve("ready.draft");
        Files.writeString(draft, Long.toString(ProcessHandle.current().pid()));
        Files.move(draft, folder.resolve("ready"), StandardCopyOption.ATOMIC_MOVE);
        Thread.currentThread().join();
    }
}
