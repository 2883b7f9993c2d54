package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.bindings.ThreadAffinity;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.BitSet;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Ranks run where their GPUs are attached: hosts of files that are made up, and a process on this one. */
@Tag("L0")
class NumaBindingTest {
    @TempDir
    private Path root;

    private void write(String file, String text) throws IOException {
        Path path = root.resolve(file);
        Files.createDirectories(path.getParent());
        Files.writeString(path, text);
    }

    private void node(int node, String cores) throws IOException {
        write("sys/devices/system/node/node" + node + "/cpulist", cores + "\n");
    }

    private void gpu(String address, String model, int number, int node) throws IOException {
        write(
                "proc/driver/nvidia/gpus/" + address + "/information",
                "Model: \t\t " + model + "\nIRQ:   \t\t 18\nGPU UUID: \t GPU-" + number + "a2b\nDevice Minor: \t "
                        + number + "\n");
        write("sys/bus/pci/devices/" + address + "/numa_node", node + "\n");
    }

    /** Two nodes of cores, one of memory alone, and four GPUs. */
    private void twoNodes() throws IOException {
        write("sys/devices/system/node/online", "0-2\n");
        node(0, "0-7,16-23");
        node(1, "8-15,24-31");
        node(2, "");
        gpu("0000:18:00.0", "NVIDIA H200", 0, 0);
        gpu("0000:2a:00.0", "NVIDIA H200", 1, 0);
        gpu("0000:9a:00.0", "NVIDIA H200", 2, 1);
        gpu("0000:ab:00.0", "NVIDIA H200", 3, 1);
    }

    private static BitSet cores(int count) {
        BitSet cores = new BitSet();
        cores.set(0, count);
        return cores;
    }

    private String bound(int ranks, Map<String, String> environment, BitSet allowed) {
        return NumaBinding.of(root, ranks, environment, allowed).toString();
    }

    @Test
    void ranksRunOnTheCoresOfTheirGpusNode() throws IOException {
        twoNodes();
        NumaBinding all = NumaBinding.of(root, 4, Map.of(), cores(32));
        assertEquals(
                "rank 0 on node 0, cores 0-7,16-23; rank 1 on node 0, cores 0-7,16-23; rank 2 on node 1, cores 8-15,24-31;"
                        + " rank 3 on node 1, cores 8-15,24-31",
                all.toString());
        assertEquals(8, all.threads(3));
        assertEquals(
                "rank 0 on node 1, cores 8-15,24-31; rank 1 on node 0, cores 0-7,16-23",
                bound(2, Map.of("CUDA_VISIBLE_DEVICES", "3, 0"), cores(32)));
        assertEquals(
                "rank 0 on node 1, cores 8-15,24-31",
                bound(1, Map.of("CUDA_VISIBLE_DEVICES", "GPU-2a,GPU-0a2b"), cores(32)));
        assertEquals("rank 0 on node 0, cores 0-3", bound(1, Map.of(), cores(4)), "a job may have some of the cores");
    }

    @Test
    void whatIsNotKnownBindsNothing() throws IOException {
        assertEquals("not bound: the host has one NUMA node", bound(1, Map.of(), cores(32)));
        node(0, "0-7");
        node(1, "8-15");
        assertEquals("not bound: no NVIDIA driver", bound(1, Map.of(), cores(32)));
        twoNodes();
        assertEquals("not bound: 4 GPUs that CUDA sees for 5 ranks", bound(5, Map.of(), cores(32)));
        assertEquals(
                "not bound: GPU 0000:9a:00.0 is attached to node 1, of which this process may use no core",
                bound(4, Map.of(), cores(4)));
        assertEquals(
                "not bound: CUDA_VISIBLE_DEVICES names MIG-5, which is no whole GPU of this host",
                bound(1, Map.of("CUDA_VISIBLE_DEVICES", "MIG-5"), cores(32)));
        gpu("0000:ab:00.0", "NVIDIA H200", 3, -1);
        assertEquals(
                "not bound: the host does not say which node GPU 0000:ab:00.0 is attached to",
                bound(4, Map.of(), cores(32)));
        gpu("0000:ab:00.0", "NVIDIA L40", 3, 1);
        assertEquals(
                "not bound: GPUs of several models, in an order that CUDA chooses; set CUDA_DEVICE_ORDER=PCI_BUS_ID",
                bound(1, Map.of(), cores(32)));
        assertTrue(NumaBinding.of(root, 4, Map.of("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), cores(32))
                .isBound());
        assertEquals(
                "not bound: --numa off",
                NumaBinding.ofHost(NumaBinding.Mode.OFF, 1).toString());
    }

    /** A process has the cores of its node, and this thread has its own again. */
    @Test
    void aProcessInheritsTheCores() throws IOException, InterruptedException {
        BitSet before = ThreadAffinity.cores();
        assertFalse(before.isEmpty());
        int last = before.length() - 1;
        node(0, "1000-1001");
        node(1, Integer.toString(last));
        gpu("0000:18:00.0", "NVIDIA H200", 0, 1);
        NumaBinding binding = NumaBinding.of(root, 1, Map.of(), before);
        assertEquals("rank 0 on node 1, cores " + last, binding.toString());
        Process process = binding.start(0, () -> new ProcessBuilder("cat", "/proc/self/status").start());
        String status = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor());
        assertTrue(status.contains("\nCpus_allowed_list:\t" + last + "\n"), status);
        assertEquals(before, ThreadAffinity.cores());
    }
}
