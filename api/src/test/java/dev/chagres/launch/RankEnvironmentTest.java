package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What each launcher's variables say, and what is said of those that are wrong. */
@Tag("L0")
class RankEnvironmentTest {
    private static final String SECRET = "0123456789abcdef";

    @TempDir
    private Path folder;

    /** Reads {@code NAME=value NAME=value}, and a secret. */
    private static Map<String, String> variables(String text) {
        Map<String, String> all = new HashMap<>(Map.of("CHAGRES_STORE_SECRET", SECRET));
        for (String pair : text.strip().split(" +")) {
            int at = pair.indexOf('=');
            all.put(pair.substring(0, at), pair.substring(at + 1));
        }
        return all;
    }

    @ParameterizedTest
    @CsvSource({
        "./chagres launch, CHAGRES_RANK=2 CHAGRES_RANKS=4 CHAGRES_LOCAL_RANK=2 CHAGRES_STORE_PORT=5000,"
                + " 2, 4, 2, 127.0.0.1, 5000",
        "torchrun, RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=127.0.0.2 MASTER_PORT=29500, 5, 8, 1, 127.0.0.2, 29500",
        "torchrun, RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 MASTER_ADDR=127.0.0.2 MASTER_PORT=29500"
                + " TORCHELASTIC_USE_AGENT_STORE=True, 5, 8, 1, 127.0.0.2, 29501",
        "Slurm, SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=3 SLURM_NNODES=1, 3, 4, 3, 127.0.0.1, 29400",
        "Slurm, SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 MASTER_ADDR=127.0.0.3 MASTER_PORT=7, 3, 4, 1, 127.0.0.3, 7",
        "Open MPI, OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1"
                + " OMPI_COMM_WORLD_LOCAL_SIZE=2, 1, 2, 1, 127.0.0.1, 29400",
        "a Kubernetes indexed job, JOB_COMPLETION_INDEX=6 CHAGRES_RANKS=8 CHAGRES_STORE_ADDRESS=127.0.0.4,"
                + " 6, 8, 0, 127.0.0.4, 29400",
    })
    void everyLauncherIsUnderstood(
            String launcher, String text, int rank, int count, int local, String host, int port) {
        RankEnvironment read = RankEnvironment.of(variables(text));
        assertEquals(launcher, read.launcher().toString());
        assertEquals(rank, read.rank());
        assertEquals(count, read.count());
        assertEquals(local, read.localRank());
        assertEquals(host, read.store().getAddress().getHostAddress());
        assertEquals(port, read.store().getPort());
        assertFalse(read.toString().contains(SECRET), read.toString());
    }

    /** Ours come first: a launched run may itself be a task of Slurm. */
    @Test
    void ourOwnVariablesComeBeforeThoseOfOthers() {
        RankEnvironment read = RankEnvironment.of(
                variables("CHAGRES_RANK=0 CHAGRES_RANKS=2 CHAGRES_LOCAL_RANK=0 SLURM_PROCID=0 SLURM_NTASKS=1"));
        assertEquals(RankEnvironment.Launcher.CHAGRES.toString(), read.launcher());
        assertEquals(2, read.count());
    }

    private static void refused(String text, Map<String, String> variables) {
        assertEquals(
                text,
                assertThrows(IllegalArgumentException.class, () -> RankEnvironment.of(variables))
                        .getMessage());
    }

    @Test
    void errorsNameTheVariable() {
        refused(
                "environment: expected the rank of this process in one of CHAGRES_RANK (./chagres launch), RANK (torchrun),"
                        + " OMPI_COMM_WORLD_RANK (Open MPI), SLURM_PROCID (Slurm), JOB_COMPLETION_INDEX (a Kubernetes indexed"
                        + " job), got none of them",
                variables("A=b"));
        refused(
                "WORLD_SIZE: expected a number from 1 on, for torchrun has started this process (RANK is set), got none",
                variables("RANK=0"));
        refused("WORLD_SIZE: expected a number from 1 on, got \"many\"", variables("RANK=0 WORLD_SIZE=many"));
        refused(
                "RANK: expected a number from 0 to 1, for WORLD_SIZE is 2, got \"2\"",
                variables("RANK=2 WORLD_SIZE=2"));
        refused(
                "LOCAL_RANK: expected a number from 0 to 1, for RANK is 1, got \"-1\"",
                variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=-1"));
        refused(
                "CHAGRES_STORE_ADDRESS or MASTER_ADDR: expected the name or address of rank 0's host, as torchrun may have put ranks on several"
                        + " hosts, got none",
                variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1"));
        refused(
                "MASTER_ADDR: expected the name or address of rank 0's host, got no.such.host.invalid, which is unknown",
                variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=no.such.host.invalid"));
        refused(
                "CHAGRES_STORE_ADDRESS: expected the name or address of rank 0's host, got no.such.host.invalid, which is unknown",
                variables("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1"
                        + " CHAGRES_STORE_ADDRESS=no.such.host.invalid"));
        refused(
                "CHAGRES_STORE_PORT: expected a number from 1 to 65535, got \"0\"",
                variables("CHAGRES_RANK=0 CHAGRES_RANKS=2 CHAGRES_LOCAL_RANK=0 CHAGRES_STORE_PORT=0"));
    }

    @Test
    void theSecretComesFromAVariableOrAFileAndIsNeverShown() throws IOException {
        Map<String, String> variables = variables("CHAGRES_RANK=0 CHAGRES_RANKS=1 CHAGRES_LOCAL_RANK=0");
        variables.remove("CHAGRES_STORE_SECRET");
        refused(
                "CHAGRES_STORE_SECRET: expected a secret that all ranks share, or the name of its file in"
                        + " CHAGRES_STORE_SECRET_FILE, got neither",
                variables);
        Path file = folder.resolve("secret");
        variables.put("CHAGRES_STORE_SECRET_FILE", file.toString());
        refused(
                "CHAGRES_STORE_SECRET_FILE: expected a file that can be read, got " + file + " (NoSuchFileException)",
                variables);
        Files.writeString(file, "short");
        refused("CHAGRES_STORE_SECRET_FILE: expected a secret of at least 16 bytes, got 5", variables);
        Files.write(file, new byte[] {(byte) 0xff, 0, 0});
        refused("CHAGRES_STORE_SECRET_FILE: expected text in UTF-8, got other bytes in " + file, variables);
        for (String endless :
                new String[] {"/dev/zero", Files.write(file, new byte[4097]).toString()}) {
            variables.put("CHAGRES_STORE_SECRET_FILE", endless);
            refused(
                    "CHAGRES_STORE_SECRET_FILE: expected a file of at most 4096 bytes, got a longer one, " + endless,
                    variables);
        }
        Files.writeString(file, SECRET + "\n");
        assertEquals(
                SECRET,
                new String(RankEnvironment.of(variables).secret().bytes(), java.nio.charset.StandardCharsets.UTF_8));
    }
}
