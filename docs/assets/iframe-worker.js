// SPDX-License-Identifier: MIT OR Apache-2.0
// Search runs in a worker, which browsers allow no page that was opened from the file system. There an invisible frame
// takes the worker's place: the same script in a window of its own.
(() => {
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      // What the script posts comes to whoever listens to this worker.
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      // Scripts are loaded one after the other; whoever asks for them may wait for the promise.
      this.inner.importScripts = (...urls) =>
        urls.reduce((before, one) => before.then(() => this.load(new URL(one, url))), Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  }

  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
