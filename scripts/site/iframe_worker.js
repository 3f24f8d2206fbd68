// Search without a server. A browser starts no Worker for a page from file://, so a hidden iframe
// stands in for it: the search's own script runs in the iframe, and messages go to and fro.
(() => {
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.tell(this, data);
      inside.addEventListener("error", (event) => this.dispatchEvent(new ErrorEvent("error", event)));
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = new URL(source, location.href).href;
          script.onload = resolve;
          script.onerror = () => reject(new Error(`${source} cannot be loaded`));
          inside.document.body.append(script);
        });
      // As a Worker's, but the search's script awaits it.
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.loaded = load(url);
    }

    tell(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      if (target === this && typeof this.onmessage === "function") this.onmessage(event);
    }

    postMessage(data) {
      this.loaded.then(() => this.tell(this.frame.contentWindow, data));
    }

    terminate() {
      this.frame.remove();
    }
  }

  // The search's script looks for this name.
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
