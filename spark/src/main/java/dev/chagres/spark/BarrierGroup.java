package dev.chagres.spark;

import dev.chagres.launch.ProcessGroup;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.BarrierTaskContext;
import org.apache.spark.BarrierTaskInfo;
import org.apache.spark.SparkEnv;
import org.apache.spark.resource.ResourceInformation;
import org.jspecify.annotations.Nullable;

/**
 * The tasks of a barrier stage as processes of ranks: task i is rank i, in an executor of its own.
 *
 * <p>A rank's device is the GPU that Spark has given to its task, else the number of ranks before it on the same host.
 *
 * <p>Threading: the task's thread.
 */
final class BarrierGroup implements ProcessGroup {
    private static final String GPU = "gpu";
    private static final char SEPARATOR = ' ';
    private static final String VISIBLE = "CUDA_VISIBLE_DEVICES";

    private final BarrierTaskContext context;
    private final List<String> hosts;
    private final int device;

    BarrierGroup(BarrierTaskContext context) {
        this.context = context;
        hosts = Arrays.stream(context.getTaskInfos())
                .map(BarrierTaskInfo::address)
                .map(BarrierGroup::host)
                .toList();
        ResourceInformation gpu = context.resourcesJMap().get(GPU);
        device = gpu == null
                ? (int) hosts.subList(0, rank()).stream()
                        .filter(hosts.get(rank())::equals)
                        .count()
                : device(Arrays.asList(gpu.addresses()), System.getenv(VISIBLE));
    }

    /** Returns the host of {@code host:port}. */
    static String host(String address) {
        int colon = address.lastIndexOf(':');
        String host = colon < 0 ? address : address.substring(0, colon);
        return host.startsWith("[") && host.endsWith("]") ? host.substring(1, host.length() - 1) : host;
    }

    /**
     * Returns which of the devices that this process sees a GPU is.
     *
     * @param addresses that Spark has given to the task, one of them
     * @param visible the devices that the process sees, null where all of the host
     * @throws IllegalArgumentException when there is not one address, or none that a device has
     */
    static int device(List<String> addresses, @Nullable String visible) {
        if (addresses.size() != 1) {
            throw new IllegalArgumentException("spark.task.resource.gpu.amount: expected 1, for each rank has one GPU,"
                    + " got " + addresses.size() + " GPUs in a task: " + addresses);
        }
        String address = addresses.getFirst();
        if (visible != null && !visible.isBlank()) {
            int place = Arrays.asList(visible.split("\\s*,\\s*")).indexOf(address);
            if (place >= 0) {
                return place;
            }
        }
        if (!address.matches("\\d{1,4}")) {
            throw new IllegalArgumentException(
                    "gpu: expected the number of a GPU, as nvidia-smi counts them, or one of " + VISIBLE + ", got "
                            + address + "; see spark.executor.resource.gpu.discoveryScript");
        }
        return Integer.parseInt(address);
    }

    @Override
    public int rank() {
        return context.partitionId();
    }

    @Override
    public List<String> hosts() {
        return hosts;
    }

    @Override
    public int device() {
        return device;
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalStateException when two ranks are in one executor
     */
    @Override
    public List<String> allGather(String text) {
        String executor = SparkEnv.get().executorId();
        List<String> all = List.of(context.allGather(executor + SEPARATOR + text));
        ensureExecutors(all.stream()
                .map(one -> one.substring(0, one.indexOf(SEPARATOR)))
                .toList());
        return all.stream()
                .map(one -> one.substring(one.indexOf(SEPARATOR) + 1))
                .toList();
    }

    /** An executor is a process, and NCCL's kernels of two ranks in one that do not wait for each other may stop both for good. */
    static void ensureExecutors(List<String> executors) {
        for (int rank = 0; rank < executors.size(); rank++) {
            int first = executors.indexOf(executors.get(rank));
            if (first < rank) {
                throw new IllegalStateException("ranks " + first + " and " + rank + " are in executor "
                        + executors.get(rank) + ": expected an executor for each rank; let spark.executor.cores be"
                        + " spark.task.cpus, so that an executor has room for one task");
            }
        }
    }
}
