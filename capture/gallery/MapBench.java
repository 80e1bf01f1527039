// SPDX-License-Identifier: MIT OR Apache-2.0
import java.util.HashMap;
import java.util.Random;

/** A map of boxed numbers, filled and then updated at random: garbage, pointers, a heap of some size. */
public final class MapBench {
    private MapBench() {}

    public static void main(String[] arguments) {
        int keys = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 200_000;
        int updates = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 500_000;
        HashMap<Integer, long[]> map = new HashMap<>();
        for (int key = 0; key < keys; key++) {
            map.put(key, new long[] {key, 0});
        }
        Random random = new Random(1);
        long sum = 0;
        for (int done = 0; done < updates; done++) {
            int key = random.nextInt(keys);
            long[] value = map.get(key);
            sum += value[0];
            map.put(key, new long[] {value[0] + 1, done});
        }
        System.out.println("sum " + sum);
    }
}
