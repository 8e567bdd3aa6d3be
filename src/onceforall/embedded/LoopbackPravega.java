package io.pravega.controller.server.rpc.grpc;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.google.common.util.concurrent.AbstractIdleService;
import io.grpc.Server;
import io.grpc.ServerInterceptors;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.pravega.common.tracing.RequestTracker;
import io.pravega.controller.server.ControllerService;
import io.pravega.controller.server.rpc.grpc.v1.ControllerServiceImpl;
import io.pravega.controller.server.security.auth.GrpcAuthHelper;
import io.pravega.local.LocalPravegaEmulator;
import io.pravega.shared.controller.tracing.RPCTracingHelpers;
import io.pravega.shared.rest.security.AuthHandlerManager;
import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.slf4j.LoggerFactory;

/**
 * One controller, one segment store and a ZooKeeper in this process, on 127.0.0.1, until it is
 * ended: {@code LoopbackPravega FOLDER PORT SEGMENT_STORE_PORT ZOOKEEPER_PORT}.
 *
 * <p>All content is in memory. When the servers answer, FOLDER/ready holds the id of this process.
 *
 * <p>Pravega's controller listens on all addresses, and no setting changes that. So this file has
 * the package of its server, and defines a class of the same name before Pravega asks for its own.
 */
public final class LoopbackPravega {
    private static final int POLL_INTERVAL_MS = 20;

    private LoopbackPravega() {}

    public static void main(String[] arguments) throws Exception {
        ((Logger) LoggerFactory.getLogger(Logger.ROOT_LOGGER_NAME)).setLevel(Level.WARN);
        String own = LoopbackPravega.class.getPackageName() + ".GRPCServer";
        String file = own.replace('.', '/') + ".class";
        try (InputStream code = LoopbackPravega.class.getClassLoader().getResourceAsStream(file)) {
            byte[] compiled = code.readAllBytes();
            MethodHandles.privateLookupIn(GRPCServerConfig.class, MethodHandles.lookup())
                    .defineClass(compiled);
        }
        Path folder = Path.of(arguments[0]);
        LocalPravegaEmulator.builder()
                .controllerPort(Integer.parseInt(arguments[1]))
                .segmentStorePort(Integer.parseInt(arguments[2]))
                .zkPort(Integer.parseInt(arguments[3]))
                .enableRestServer(false)
                .enableAuth(false)
                .enableTls(false)
                .enableTlsReload(false)
                .enabledAdminGateway(false)
                .enableMetrics(false)
                .build()
                .start();
        waitFor(Integer.parseInt(arguments[1]));
        Path draft = folder.resolve("ready.draft");
        Files.writeString(draft, Long.toString(ProcessHandle.current().pid()));
        Files.move(draft, folder.resolve("ready"), StandardCopyOption.ATOMIC_MOVE);
        Thread.currentThread().join();
    }

    /** The controller opens its port when the streams that it keeps its own work in are there. */
    private static void waitFor(int port) throws InterruptedException {
        while (true) {
            try (Socket connected = new Socket("127.0.0.1", port)) {
                return;
            } catch (IOException refused) {
                Thread.sleep(POLL_INTERVAL_MS);
            }
        }
    }
}

/** Pravega's, which listens on 127.0.0.1 only and has neither TLS nor authentication. */
public class GRPCServer extends AbstractIdleService {
    private final Server server;

    public GRPCServer(ControllerService service, GRPCServerConfig config, RequestTracker tracker) {
        GrpcAuthHelper noAuthentication = new GrpcAuthHelper(false, "", 0);
        server =
                NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", config.getPort()))
                        .addService(
                                ServerInterceptors.intercept(
                                        new ControllerServiceImpl(
                                                service, noAuthentication, tracker, false, false),
                                        RPCTracingHelpers.getServerInterceptor(tracker)))
                        .build();
    }

    public AuthHandlerManager getAuthHandlerManager() {
        return null;
    }

    @Override
    protected void startUp() throws Exception {
        server.start();
    }

    @Override
    protected void shutDown() throws Exception {
        server.shutdown();
        server.awaitTermination();
    }
}
