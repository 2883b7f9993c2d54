package dev.chagres.trainer;

import dev.chagres.bindings.ThreadAffinity;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/**
 * The cores of a host that each rank's process runs on: those of the NUMA node that its GPU is attached to. Memory follows, since Linux takes it
 * from the node of the thread that first writes to it.
 *
 * <p>Threading: immutable.
 */
final class NumaBinding {
    /** Where ranks run. */
    enum Mode {
        /** On the cores of their GPU's node, where the host has several nodes and says which. */
        AUTO,
        /** Anywhere. */
        OFF
    }

    /** The variable that tells a rank how all are bound, for its report. */
    static final String NUMA = "CHAGRES_NUMA";

    /** Of a rank. */
    private record Place(int node, BitSet cores) {}

    private final List<Place> places;
    private final String text;

    private NumaBinding(List<Place> places, String text) {
        this.places = places;
        this.text = text;
    }

    private static NumaBinding none(String reason) {
        return new NumaBinding(List.of(), "not bound: " + reason);
    }

    /** Returns that of this host. */
    static NumaBinding ofHost(Mode mode, int ranks) {
        return mode == Mode.OFF ? none("--numa off") : of(Path.of("/"), ranks, System.getenv(), ThreadAffinity.cores());
    }

    /**
     * Finds the nodes of the GPUs of so many ranks. Where one is not found, no rank is bound.
     *
     * @param root of the file systems {@code /sys} and {@code /proc}
     * @param environment in which CUDA chooses devices
     * @param allowed the cores that this process may use
     */
    static NumaBinding of(Path root, int ranks, Map<String, String> environment, BitSet allowed) {
        try {
            Map<Integer, BitSet> nodes = nodes(root);
            if (nodes.size() < 2) {
                return none("the host has one NUMA node");
            }
            List<Path> gpus = gpus(root);
            if (gpus.isEmpty()) {
                return none("no NVIDIA driver");
            }
            List<Path> visible = visible(gpus, environment);
            if (visible.size() < ranks) {
                return none(visible.size() + " GPUs that CUDA sees for " + ranks + " ranks");
            }
            List<Place> places = new ArrayList<>();
            for (Path gpu : visible.subList(0, ranks)) {
                int node = node(root, gpu);
                BitSet cores = (BitSet) nodes.getOrDefault(node, new BitSet()).clone();
                cores.and(allowed);
                if (cores.isEmpty()) {
                    return none("GPU " + gpu.getFileName() + " is attached to node " + node
                            + ", of which this process may use no core");
                }
                places.add(new Place(node, cores));
            }
            return new NumaBinding(List.copyOf(places), "");
        } catch (IOException | IllegalArgumentException unknown) {
            return none(String.valueOf(unknown.getMessage()));
        }
    }

    private static Map<Integer, BitSet> nodes(Path root) throws IOException {
        Map<Integer, BitSet> nodes = new TreeMap<>();
        Path all = root.resolve("sys/devices/system/node");
        if (Files.isDirectory(all)) {
            try (DirectoryStream<Path> folders = Files.newDirectoryStream(all, "node[0-9]*")) {
                for (Path folder : folders) {
                    BitSet cores = cores(Files.readString(folder.resolve("cpulist")));
                    if (!cores.isEmpty()) { // A node of memory alone is none.
                        nodes.put(
                                Integer.parseInt(folder.getFileName().toString().substring("node".length())), cores);
                    }
                }
            }
        }
        return nodes;
    }

    /** Reads such as {@code 0-3,8}. */
    private static BitSet cores(String list) {
        BitSet cores = new BitSet();
        for (String range : list.strip().split(",", -1)) {
            if (!range.isEmpty()) {
                String[] ends = range.split("-", 2);
                cores.set(Integer.parseInt(ends[0]), Integer.parseInt(ends[ends.length - 1]) + 1);
            }
        }
        return cores;
    }

    /** Returns the GPUs in the order of their PCI addresses, by which their files are named. */
    private static List<Path> gpus(Path root) throws IOException {
        List<Path> gpus = new ArrayList<>();
        Path all = root.resolve("proc/driver/nvidia/gpus");
        if (Files.isDirectory(all)) {
            try (DirectoryStream<Path> folders = Files.newDirectoryStream(all)) {
                folders.forEach(gpus::add);
            }
        }
        gpus.sort(null);
        return gpus;
    }

    private static Optional<String> field(Path gpu, String name) throws IOException {
        return Files.readString(gpu.resolve("information"))
                .lines()
                .filter(line -> line.startsWith(name + ":"))
                .map(line -> line.substring(name.length() + 1).strip())
                .findFirst();
    }

    /** Returns the GPUs in CUDA's order. */
    private static List<Path> visible(List<Path> gpus, Map<String, String> environment) throws IOException {
        Set<Optional<String>> models = new HashSet<>();
        for (Path gpu : gpus) {
            models.add(field(gpu, "Model"));
        }
        if (models.size() > 1 && !"PCI_BUS_ID".equals(environment.get("CUDA_DEVICE_ORDER"))) {
            throw new IllegalArgumentException(
                    "GPUs of several models, in an order that CUDA chooses; set CUDA_DEVICE_ORDER=PCI_BUS_ID");
        }
        String chosen = environment.get("CUDA_VISIBLE_DEVICES");
        if (chosen == null) {
            return gpus;
        }
        List<Path> visible = new ArrayList<>();
        for (String one : chosen.split(",", -1)) {
            visible.add(gpu(gpus, one.strip()));
        }
        return visible;
    }

    /** Returns the GPU of a number, or of the beginning of a UUID. */
    private static Path gpu(List<Path> gpus, String name) throws IOException {
        if (name.matches("[0-9]{1,4}") && Integer.parseInt(name) < gpus.size()) {
            return gpus.get(Integer.parseInt(name));
        }
        for (Path gpu : gpus) {
            if (name.startsWith("GPU-") && field(gpu, "GPU UUID").orElse("").startsWith(name)) {
                return gpu;
            }
        }
        throw new IllegalArgumentException(
                "CUDA_VISIBLE_DEVICES names " + name + ", which is no whole GPU of this host");
    }

    private static int node(Path root, Path gpu) throws IOException {
        String address = gpu.getFileName().toString().toLowerCase(Locale.ROOT);
        int node = Integer.parseInt(Files.readString(
                        root.resolve("sys/bus/pci/devices").resolve(address).resolve("numa_node"))
                .strip());
        if (node < 0) {
            throw new IllegalArgumentException("the host does not say which node GPU " + address + " is attached to");
        }
        return node;
    }

    /** Returns whether ranks are bound. */
    boolean isBound() {
        return !places.isEmpty();
    }

    /** Returns how many cores a rank has, where several on a node share its cores. */
    int threads(int rank) {
        Place own = places.get(rank);
        long sharing = places.stream().filter(place -> place.node == own.node).count();
        return Math.max(1, (int) (own.cores.cardinality() / sharing));
    }

    /** What starts a process. */
    interface Start {
        Process run() throws IOException;
    }

    /** Starts the process of a rank, which inherits the cores of the thread that starts it. */
    Process start(int rank, Start start) throws IOException {
        BitSet before = isBound() ? ThreadAffinity.cores() : new BitSet();
        if (before.isEmpty() || !ThreadAffinity.set(places.get(rank).cores)) {
            return start.run();
        }
        try {
            return start.run();
        } finally {
            ThreadAffinity.set(before);
        }
    }

    /** Returns where each rank runs, or why anywhere. */
    @Override
    public String toString() {
        if (!isBound()) {
            return text;
        }
        StringBuilder ranks = new StringBuilder();
        for (int rank = 0; rank < places.size(); rank++) {
            Place place = places.get(rank);
            ranks.append(rank == 0 ? "" : "; ")
                    .append("rank ")
                    .append(rank)
                    .append(" on node ")
                    .append(place.node)
                    .append(", cores ")
                    .append(list(place.cores));
        }
        return ranks.toString();
    }

    private static String list(BitSet cores) {
        StringBuilder list = new StringBuilder();
        for (int first = cores.nextSetBit(0); first >= 0; ) {
            int end = cores.nextClearBit(first);
            list.append(list.isEmpty() ? "" : ",").append(first).append(end == first + 1 ? "" : "-" + (end - 1));
            first = cores.nextSetBit(end);
        }
        return list.toString();
    }
}
