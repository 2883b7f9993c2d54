package dev.chagres.launch;

import dev.chagres.bindings.ForeignText;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * What the environment of a process says of its rank, as {@code ./chagres launch}, torchrun, Slurm, Open MPI and Kubernetes' indexed jobs
 * set it.
 *
 * <p>Threading: immutable.
 *
 * @param launcher who started the process
 * @param rank r, from 0 to N - 1
 * @param count N
 * @param localRank which of the ranks on this host, and so which device
 * @param store where rank 0 listens
 * @param secret what ranks prove to each other that they know
 * @param listening where rank 0 listens already; null where it is to listen at {@code store}, and of other ranks
 */
record RankEnvironment(
        String launcher,
        int rank,
        int count,
        int localRank,
        InetSocketAddress store,
        Secret secret,
        @Nullable ServerSocket listening)
        implements RankProcess {
    static final String RANK = "CHAGRES_RANK";
    static final String RANKS = "CHAGRES_RANKS";
    static final String LOCAL_RANK = "CHAGRES_LOCAL_RANK";
    static final String ADDRESS = "CHAGRES_STORE_ADDRESS";
    static final String PORT = "CHAGRES_STORE_PORT";
    static final String SECRET = "CHAGRES_STORE_SECRET";
    static final String SECRET_FILE = "CHAGRES_STORE_SECRET_FILE";

    private static final int DEFAULT_PORT = 29_400;
    static final int LAST_PORT = 65_535;
    private static final int SHORTEST_SECRET = 16;
    /** Of the bytes in a secret's file; a device may have them without an end. */
    private static final int LONGEST_SECRET = 4096;

    /** Who starts processes, and the variables that each gets; a null name is a variable that the launcher does not have. */
    enum Launcher {
        CHAGRES("./chagres launch", RANK, RANKS, LOCAL_RANK, null, null),
        TORCHRUN("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        OPEN_MPI(
                "Open MPI",
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "MASTER_ADDR",
                "MASTER_PORT"),
        SLURM("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT"),
        /** A pod has one rank; a job does not tell its pods how many they are. */
        KUBERNETES("a Kubernetes indexed job", "JOB_COMPLETION_INDEX", RANKS, null, "MASTER_ADDR", "MASTER_PORT");

        private final String label;
        private final String rank;
        private final String count;
        private final @Nullable String localRank;
        private final @Nullable String address;
        private final @Nullable String port;

        Launcher(
                String label,
                String rank,
                String count,
                @Nullable String localRank,
                @Nullable String address,
                @Nullable String port) {
            this.label = label;
            this.rank = rank;
            this.count = count;
            this.localRank = localRank;
            this.address = address;
            this.port = port;
        }

        @Override
        public String toString() {
            return label;
        }
    }

    /** Bytes that are never shown. */
    record Secret(byte[] bytes) {
        @Override
        public String toString() {
            return "(secret)";
        }
    }

    /** Returns whether {@code ./chagres launch} has started this process. */
    static boolean isLaunched(Map<String, String> variables) {
        return variables.containsKey(RANK);
    }

    /**
     * Reads the variables.
     *
     * @throws IllegalArgumentException when one is absent or has no usable value; the text names it
     */
    static RankEnvironment of(Map<String, String> variables) {
        Launcher launcher = launcher(variables);
        int count = number(variables, launcher.count, 1, Integer.MAX_VALUE, "", launcher);
        String ofCount = ", for " + launcher.count + " is " + count;
        int rank = number(variables, launcher.rank, 0, count - 1, ofCount, launcher);
        String ofRank = ", for " + launcher.rank + " is " + rank;
        int local = launcher.localRank == null ? 0 : number(variables, launcher.localRank, 0, rank, ofRank, launcher);
        String address = address(variables, launcher, local == rank && count == 1);
        var store = new InetSocketAddress(address, port(variables, launcher));
        if (store.isUnresolved()) {
            throw new IllegalArgumentException(addressVariable(variables, launcher)
                    + ": expected the name or address of rank 0's host, got " + address + ", which is unknown");
        }
        return new RankEnvironment(launcher.toString(), rank, count, local, store, secret(variables), null);
    }

    @Override
    public RankEnvironment meet() {
        return this;
    }

    /** Returns {@code text}, which names variables, where this was read from some; else {@code otherwise}. */
    String ofVariables(String text, String otherwise) {
        return launcher.equals(Rendezvous.LAUNCHER) ? otherwise : text;
    }

    private static Launcher launcher(Map<String, String> variables) {
        for (Launcher launcher : Launcher.values()) {
            if (variables.containsKey(launcher.rank)) {
                return launcher;
            }
        }
        StringBuilder names = new StringBuilder();
        for (Launcher launcher : Launcher.values()) {
            names.append(names.isEmpty() ? "" : ", ")
                    .append(launcher.rank)
                    .append(" (")
                    .append(launcher.label)
                    .append(')');
        }
        throw new IllegalArgumentException(
                "environment: expected the rank of this process in one of " + names + ", got none of them");
    }

    /** {@code why}: what decides the largest number. */
    private static int number(
            Map<String, String> variables, String name, int least, int most, String why, Launcher launcher) {
        String value = variables.get(name);
        String range = most == Integer.MAX_VALUE
                ? "a number from " + least + " on"
                : "a number from " + least + " to " + most + why;
        if (value == null) {
            throw new IllegalArgumentException(name + ": expected " + range + ", for " + launcher
                    + " has started this process (" + launcher.rank + " is set), got none");
        }
        try {
            int number = Integer.parseInt(value.strip());
            if (number >= least && number <= most) {
                return number;
            }
        } catch (NumberFormatException _) {
            // It is told below, as a number out of range is.
        }
        throw new IllegalArgumentException(name + ": expected " + range + ", got " + ForeignText.quoted(value));
    }

    private static String address(Map<String, String> variables, Launcher launcher, boolean alone) {
        String given = variables.get(addressVariable(variables, launcher));
        if (given != null && !given.isBlank()) {
            return given.strip();
        }
        boolean oneHost = alone
                || launcher == Launcher.CHAGRES
                || (launcher == Launcher.SLURM && "1".equals(variables.get("SLURM_NNODES")))
                || (launcher == Launcher.OPEN_MPI
                        && Objects.equals(
                                variables.get("OMPI_COMM_WORLD_SIZE"), variables.get("OMPI_COMM_WORLD_LOCAL_SIZE")));
        if (oneHost) {
            return "127.0.0.1";
        }
        throw new IllegalArgumentException(
                ADDRESS + " or " + launcher.address + ": expected the name or address of rank 0's host, as " + launcher
                        + " may have put ranks on several hosts, got none");
    }

    /** Returns the variable that says where rank 0 is: ours, else the launcher's. */
    private static String addressVariable(Map<String, String> variables, Launcher launcher) {
        return variables.containsKey(ADDRESS) || launcher.address == null ? ADDRESS : launcher.address;
    }

    private static int port(Map<String, String> variables, Launcher launcher) {
        if (variables.containsKey(PORT)) {
            return number(variables, PORT, 1, LAST_PORT, "", launcher);
        }
        if (launcher.port == null || !variables.containsKey(launcher.port)) {
            return DEFAULT_PORT;
        }
        int given = number(variables, launcher.port, 1, LAST_PORT - 1, "", launcher);
        // At its own port torchrun's agent listens.
        return "True".equals(variables.get("TORCHELASTIC_USE_AGENT_STORE")) ? given + 1 : given;
    }

    private static Secret secret(Map<String, String> variables) {
        String value = variables.get(SECRET);
        String file = variables.get(SECRET_FILE);
        if (value == null && file == null) {
            throw new IllegalArgumentException(
                    SECRET + ": expected a secret that all ranks share, or the name of its file in " + SECRET_FILE
                            + ", got neither");
        }
        String name = value == null ? SECRET_FILE : SECRET;
        byte[] bytes = value == null ? read(file) : value.strip().getBytes(StandardCharsets.UTF_8);
        if (bytes.length < SHORTEST_SECRET) {
            throw new IllegalArgumentException(
                    name + ": expected a secret of at least " + SHORTEST_SECRET + " bytes, got " + bytes.length);
        }
        return new Secret(bytes);
    }

    private static byte[] read(@Nullable String file) {
        try (InputStream in = Files.newInputStream(Path.of(String.valueOf(file)))) {
            byte[] all = in.readNBytes(LONGEST_SECRET + 1);
            if (all.length > LONGEST_SECRET) {
                throw new IllegalArgumentException(SECRET_FILE + ": expected a file of at most " + LONGEST_SECRET
                        + " bytes, got a longer one, " + file);
            }
            CharBuffer text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(all));
            return text.toString().strip().getBytes(StandardCharsets.UTF_8);
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException(SECRET_FILE + ": expected text in UTF-8, got other bytes in " + file, e);
        } catch (IOException | InvalidPathException e) {
            throw new IllegalArgumentException(
                    SECRET_FILE + ": expected a file that can be read, got " + file + " ("
                            + e.getClass().getSimpleName() + ")",
                    e);
        }
    }
}
